#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ipc/vocabulary/digest.hpp"
#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/units.hpp"
#include "ipc/vocabulary/wait_reason.hpp"
#include "kvd/core/door/inputs.hpp"
#include "kvd/core/door/tuning.hpp"
#include "kvd/pool/tier_pool.hpp"

namespace kvd::core {

/// Life of a request (kvd/DESIGN.md "Words"). `kSwappingOut` and `kSwappingIn` are rotary with a
/// copy under way. An ended request is removed and has no state.
enum class RequestState : std::uint8_t {
  kWaiting,
  kPrefill,
  kRunning,
  kSwappingOut,
  kRotary,
  kSwappingIn,
};
constexpr std::size_t kRequestStates = 6;
[[nodiscard]] const char* name(RequestState state);

struct RequestStatus {
  RequestKey key;
  RequestState state = RequestState::kWaiting;
  std::int64_t prompt_tokens = 0;
  std::int64_t tokens = 0;
  std::int64_t max_new_tokens = 0;
  Bytes hbm;
  Bytes dram;
  double vlt_s = 0;
  struct Goals {
    std::uint8_t slo_class = 0;  ///< place in EngineStatus::Service::classes
    bool next = false;           ///< its first token is there, so the time between tokens counts
    double ttft_s = 0;
    double tbt_s = 0;
    double gap_s = 0;  ///< the longest wait for a token
    /// Seconds since the goal of its next token passed; negative: seconds until it passes. None: it
    /// owes no token.
    std::optional<double> late_s;
  } goals;
  WaitReason waits_for = WaitReason::kNone;
  std::uint64_t rotations = 0;  ///< how often it was swapped out
  std::uint32_t skips = 0;
  double age_s = 0;
  bool promised = false;  ///< it is a victim that another engine or a region waits for
};

/// The placement plan in force for an engine whose layers may stream.
struct PlanStatus {
  struct Entry {
    RequestId request;
    std::uint32_t distance = 0;          ///< groups k, 2k, … stream; 0: none do, or no such k
    std::vector<std::uint32_t> in_dram;  ///< layer groups, 1-based, whose full blocks live there
    bool paused = false;
  };
  EngineId engine;
  std::uint64_t number = 0;  ///< number of the last problem given to the solver
  std::string policy;        ///< the policy that made it; empty: none is in force yet
  /// The selected policy's plan did not fit, so another policy's plan holds.
  bool fallback = false;
  bool solving = false;         ///< the next one is being made
  std::int64_t steps_left = 0;  ///< steps until it expires
  double step_s = 0;            ///< predicted
  double stall_s = 0;           ///< the part of it spent waiting for layers
  double gap = 0;  ///< the largest relative distance of step_s to its proved lower bound
  std::vector<Entry> requests;  ///< the requests it was made for, and the paused ones
};

/// Describes an engine, or the node, that an operator has taken out of service.
struct DrainStatus {
  TimePoint since{0};
  std::optional<TimePoint> deadline;  ///< what is left then ends
  std::uint64_t left = 0;  ///< requests of the engine, or engines of the node: see Drains
};

/// Cached blocks that go to the remote store, as the node is out of service.
struct RemoteWrites {
  std::uint64_t left = 0, stored = 0;
  std::uint64_t lost = 0;  ///< they could not be written
};

/// A cache that an engine has open. Caches of equal models and sizes find each other's blocks.
struct CacheStatus {
  std::string model;  ///< the name that the engine gave; empty: it gave none
  Bytes block_bytes;
  std::uint32_t block_tokens = 0;
  Digest fingerprint{};  ///< of model and blocks, as its engine tells it
  /// What its first block is called on remote servers. Nodes where this is the same find each
  /// other's blocks. All zero: there are no servers.
  Digest remote_name{};
};

/// How often a value fell into (bound before, bound]. The last place counts what is above all
/// bounds.
struct Distribution {
  std::span<const double> bounds;
  std::vector<std::uint64_t> counts = std::vector<std::uint64_t>(bounds.size() + 1);
  double sum = 0;
  /// Where the last value fell, since the next one mostly falls there, too.
  std::size_t last = 0;

  void add(double value, std::uint64_t times = 1) {
    const bool above = last == 0 || bounds[last - 1] < value;
    if (!above || (last < bounds.size() && bounds[last] < value)) {
      const auto bound = std::lower_bound(bounds.begin(), bounds.end(), value);
      last = static_cast<std::size_t>(bound - bounds.begin());
    }
    counts[last] += times;
    sum += value * static_cast<double>(times);
  }
};
inline constexpr double kVltBounds[] = {0, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60};  // seconds
inline constexpr double kDepositBounds[] = {0, 1, 2, 4, 8, 16, 32, 64, 128, 256};
inline constexpr double kScheduleBounds[] = {0.00001, 0.00002, 0.00005, 0.0001, 0.0002,
                                             0.0005,  0.001,   0.002,   0.01};  // seconds
inline constexpr double kWaitBounds[] = {0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300};
inline constexpr double kTbtBounds[] = {0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5, 30};

/// Counts tokens that came in time, and those whose goal passed.
struct Intervals {
  std::uint64_t met = 0, missed = 0;
};

/// How well requests of one class of an engine have been served since the engine attached.
struct ClassService {
  std::string name;  ///< name of the class, or kOwnGoals, or kOtherClasses
  Intervals ttft, tbt;
  /// Time until the first iteration, or until the end without one.
  Distribution wait_s{kWaitBounds};
  Distribution ttft_s{kWaitBounds};
  Distribution tbt_s{kTbtBounds};
  /// Requests that wait now: the longest wait, and the longest as a multiple of the request's own
  /// goal.
  struct Oldest {
    double wait_s = 0;
    double goals = 0;
  } oldest{};
};
/// Stands in place of a class for requests that name their own goals.
inline constexpr const char* kOwnGoals = "(own)";
/// Stands for all classes that find no place of their own.
inline constexpr const char* kOtherClasses = "(other)";

struct EngineStatus {
  EngineId id;
  std::string name;
  std::string domain;
  std::int32_t pid = 0;
  std::uint32_t uid = 0;
  Generation generation;
  struct Level {
    std::uint32_t number = 1;  ///< 1: regions only, 3: scheduled
    /// At level 3: it places its own blocks, and asks which requests may run.
    bool places = false;
  } level;
  struct Ranks {
    std::uint32_t count = 1;        ///< ranks of a tensor-parallel group
    std::vector<DeviceId> devices;  ///< devices of their HBM
  } ranks;                          ///< pid is that of the first that attached
  bool responsive = true;  ///< false: has not stepped (level 3) or beaten (level 1) in time
  bool dying = false;      ///< its death was noticed, and its memory is quarantined
  Bytes region;
  Bytes hbm;
  Bytes dram;
  std::uint32_t requests = 0;
  std::uint64_t steps = 0;
  struct Rotations {
    std::uint64_t in = 0;
    std::uint64_t out = 0;
  } rotations;
  Bytes orphaned;            ///< regions of an earlier daemon that it still maps
  std::uint64_t tokens = 0;  ///< tokens whose KV it reported
  struct Service {
    double idle_s = 0;                    ///< time since its last step or heartbeat
    std::optional<DrainStatus> drain;     ///< none: it gets whatever it asks for
    std::vector<ClassService> classes{};  ///< service of its requests, at level 3
  } service;
  struct Kv {
    Bytes token_bytes;  ///< bytes of a token in all layers and ranks; none: level 1
    double prefill_token_s =
        0;  ///< what computing one token of a prompt takes; 0: not measured yet
    std::vector<CacheStatus> caches{};  ///< caches of blocks that it places itself
  } kv;
};

/// Blocks (of all layer groups) that an earlier daemon left and that are of no use.
struct KeptDrops {
  std::uint64_t torn = 0;      ///< half written down, or a layer group is missing
  std::uint64_t altered = 0;   ///< their bytes differ from those that were written down
  std::uint64_t misfit = 0;    ///< pool or class have changed
  std::uint64_t nobodys = 0;   ///< their domain does not exist, or may not have as much
  std::uint64_t headless = 0;  ///< the block before them is missing
  [[nodiscard]] std::uint64_t all() const { return torn + altered + misfit + nobodys + headless; }
};

/// The tiers below DRAM, as indexes.
enum LowerTier : std::uint8_t { kDiskTier, kRemoteTier, kLowerTiers };

/// Monotonic counts since the daemon started.
struct Counters {
  std::uint64_t steps = 0;
  std::uint64_t rotations_out = 0;
  std::uint64_t rotations_in = 0;
  std::uint64_t rotations_forced = 0;
  std::uint64_t rotation_blocked_dram = 0;  ///< a request could not leave: no DRAM slots
  /// A running request stood still because it lacked a block.
  std::uint64_t rotation_blocked_growth = 0;
  /// Steps in which a claim awaited what was promised.
  std::uint64_t rotation_blocked_promise = 0;
  std::uint64_t promises = 0;
  std::uint64_t standstills = 0;  ///< how often a domain stood still
  std::uint64_t promises_expired = 0;
  std::uint64_t requests_submitted = 0;
  std::uint64_t requests_finished = 0;
  std::uint64_t requests_aborted = 0;
  /// Requests that kvd ended, by reason.
  struct Ended {
    std::uint64_t for_memory = 0;  ///< to end a standstill
    std::uint64_t drained = 0;     ///< because their engine was taken out of service
  } ended;
  std::uint64_t tokens = 0;
  std::uint64_t copies[2] = {0, 0};  ///< finished batches by kernels::Direction order: h2d, d2h
  std::uint64_t copy_bytes[2] = {0, 0};
  std::uint64_t copy_busy_ns[2] = {0, 0};
  std::uint64_t copy_failures = 0;
  std::uint64_t region_bytes_granted = 0;
  std::uint64_t engines_attached = 0;
  std::uint64_t engines_died = 0;  ///< engines that ended without goodbye
  struct Slabs {
    std::uint64_t bytes_scrubbed = 0;
    std::uint64_t renewed = 0;  ///< slabs that got new memory for another domain
  } slabs;
  /// Calls of engines that place their own blocks, and what they were told.
  struct Schedule {
    std::uint64_t calls = 0, preempted = 0, admitted = 0;
  } schedule;
  std::uint64_t stale_commands = 0;  ///< commands refused for key, generation or sequence
  std::uint64_t attach_paused = 0;   ///< how often attaching waited for a free descriptor
  Intervals ttft, tbt;
  struct Prefixes {
    std::uint64_t prompts = 0;             ///< prompts that began, and whose content was told
    std::uint64_t asked = 0;               ///< tokens of these prompts
    std::uint64_t found[kTiers] = {0, 0};  ///< tokens of these prompts that a tier had
    std::uint64_t evicted_bytes[kTiers] = {0, 0};
    struct Lower {
      std::uint64_t loads = 0, stores = 0;  ///< blocks of all layer groups
      std::uint64_t load_bytes = 0, store_bytes = 0;
      std::uint64_t load_failures = 0;   ///< misses although the block was known
      std::uint64_t store_failures = 0;  ///< writes that failed, so the block is not there
      /// Not written: the budget is spent, no slot is free, or DRAM gave the block up before.
      std::uint64_t refused = 0;
      std::uint64_t late = 0;  ///< requests that stopped waiting
    } lower[kLowerTiers];
    struct Kept {
      /// Blocks of all layer groups, found of the previous daemon.
      std::uint64_t blocks[kTiers] = {0, 0};
      std::uint64_t bytes[kTiers] = {0, 0};
      KeptDrops dropped;
    } kept;
  } prefixes;
  std::uint64_t plans = 0;           ///< placement problems given to the solver
  std::uint64_t pauses = 0;          ///< requests paused by the placement policy
  std::uint64_t streams = 0;         ///< iterations with streamed layers
  std::uint64_t layers_fetched = 0;  ///< blocks that were staged
  std::uint64_t blocks_synced = 0;   ///< blocks copied to DRAM ahead
  struct Compacted {
    std::uint64_t blocks = 0;  ///< blocks moved within DRAM so that a slab became empty
    std::uint64_t bytes = 0;
  } compacted;
  std::uint64_t layerwise = 0;           ///< prompts that prefilled into DRAM
  Distribution vlt{kVltBounds};          ///< of every request in every decision, in seconds
  Distribution deposit{kDepositBounds};  ///< tokens not yet due, taken at each report of new ones
};

/// One device with its HBM and its link.
struct DeviceStatus {
  DeviceId device;
  pool::TierStats hbm;
  std::vector<pool::SlabView> slabs;
  Bytes b_xfer;                  ///< the value in force at the last decision
  double link_rate[2] = {0, 0};  ///< measured bytes a second, h2d and d2h; 0: not measured yet
  double mean_step_s = 0;        ///< mean time of iterations of the engines on it
};

/// Rates of reads as measured; 0: not measured yet.
struct DiskRates {
  double bytes_per_s = 0;
  double latency_s = 0;  ///< of a read, before its first byte
};

/// The files of a class of cached blocks.
struct DiskModel {
  std::uint32_t id = 0;  ///< 0: files of an earlier daemon that nobody has told of yet
  std::string folder;    ///< only the shell knows it
  std::string model;     ///< model of its blocks; else what an engine of it is called
  std::string state;     ///< opening, open, closing, closed, refused
  Bytes cached;          ///< blocks that can be found; unknown for closed files
  Bytes bytes;           ///< of the files
  std::uint32_t engines = 0;
  double idle_s = 0;  ///< time since its last use
};

/// A server of the remote store; counts since the start. Only the shell knows them.
struct RemoteServer {
  std::string server;  ///< as configured
  bool on = false;
  std::string why;  ///< off: why; on: why nothing is written there, or empty
  std::uint64_t loads = 0, misses = 0, stores = 0, renewals = 0, finds = 0, errors = 0, offs = 0;
  Bytes bytes_in, bytes_out;
  double round_trip_s = 0;  ///< 0: not measured
};

/// The whole visible state at one instant. The control thread makes it; anyone may read it.
struct ControllerStatus {
  Counters counters;
  pool::TierStats tiers[kTiers];              ///< for HBM the sum of all devices
  std::vector<pool::SlabView> slabs[kTiers];  ///< likewise
  std::vector<DeviceStatus> devices;
  std::vector<EngineStatus> engines;
  std::vector<RequestStatus> requests;
  std::vector<PlanStatus> plans;  ///< plans of the engines whose layers may stream now
  Tuning tuning;
  Bytes orphaned;
  Bytes held[kTiers];  ///< blocks that requests name; those that several share, once
  /// Blocks that no request names any more, by tier; the last: blocks on disk, whether or not a
  /// request names them.
  Bytes cached[kTiers + 1];
  struct Retained {
    Bytes bytes;                         ///< of those in DRAM, what engines had retained
    std::uint64_t evicted_bytes = 0;     ///< what made way before its time
    std::uint64_t prefetched_bytes = 0;  ///< what came to be retained
  } retained;
  DiskRates disk_rates;  ///< rates of the slowest class of blocks
  std::vector<DiskModel> disk_models;
  std::vector<RemoteServer> remote_servers;
  std::optional<DrainStatus> drain;       ///< drain of the node; none: it is in service
  std::optional<RemoteWrites> to_remote;  ///< none: nothing goes there for the drain
  /// What the policies would be asked now, so that a decision can be repeated elsewhere.
  std::vector<RotationInput> rotation_inputs;
  std::vector<AdmissionInput> admission_inputs;
  std::vector<PlacementInput> placement_inputs;
};

}  // namespace kvd::core
