#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/units.hpp"
#include "ipc/vocabulary/wait_reason.hpp"
#include "kvd/core/door/inputs.hpp"
#include "kvd/core/door/tuning.hpp"
#include "kvd/pool/tier_pool.hpp"

namespace kvd::core {

/// Life of a request (kvd/DESIGN.md "Words"). `kSwappingOut` and `kSwappingIn` are rotary with a
/// copy under way. One that has ended is removed and has no state.
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
    bool next = false;           ///< its first token is there: the one between tokens counts
    double ttft_s = 0;
    double tbt_s = 0;
    double gap_s = 0;  ///< the longest wait for a token
    /// Since the goal of its next token passed; negative: until it does. None: it owes none.
    std::optional<double> late_s;
  } goals;
  WaitReason waits_for = WaitReason::kNone;
  std::uint64_t rotations = 0;  ///< times swapped out
  std::uint32_t skips = 0;
  double age_s = 0;
  bool promised = false;  ///< a victim another engine or a region waits for
};

/// The placement plan in force for one engine whose layers may stream.
struct PlanStatus {
  struct Entry {
    RequestId request;
    std::uint32_t distance = 0;          ///< groups k, 2k, … stream; 0: none do, or no such k
    std::vector<std::uint32_t> in_dram;  ///< layer groups, 1-based, whose full blocks live there
    bool paused = false;
  };
  EngineId engine;
  std::uint64_t number = 0;     ///< of the last problem given to the solver
  std::string policy;           ///< that made it; empty: none is in force yet
  bool fallback = false;        ///< the selected policy's plan did not fit: another one's holds
  bool solving = false;         ///< the next one is being made
  std::int64_t steps_left = 0;  ///< until it expires
  double step_s = 0;            ///< predicted
  double stall_s = 0;           ///< of it, waiting for layers
  double gap = 0;               ///< of step_s to its proved lower bound, at most, relative
  std::vector<Entry> requests;  ///< those it was made for, and the paused ones
};

/// Tells of an engine, or of the node, that an operator has taken out of service.
struct DrainStatus {
  TimePoint since{0};
  std::optional<TimePoint> deadline;  ///< what is left then ends
  std::uint64_t left = 0;             ///< requests of the engine, engines of the node: Drains
};

/// A cache that an engine has open: those of equal models and sizes find each other's blocks.
struct CacheStatus {
  std::string model;  ///< as the engine says; empty: it says nothing
  Bytes block_bytes;
  std::uint32_t block_tokens = 0;
};

/// How often a value fell into (bound before, bound], the last place for what is above all bounds.
struct Distribution {
  std::span<const double> bounds;
  std::vector<std::uint64_t> counts = std::vector<std::uint64_t>(bounds.size() + 1);
  double sum = 0;
  std::size_t last = 0;  ///< where the last value fell, as mostly the next one does

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

/// Tokens that came in time, and those whose goal passed.
struct Intervals {
  std::uint64_t met = 0, missed = 0;
};

/// How requests of one class of an engine are served, since the engine attached.
struct ClassService {
  std::string name;  ///< of the class, or kOwnGoals, or kOtherClasses
  Intervals ttft, tbt;
  Distribution wait_s{kWaitBounds};  ///< until the first iteration, or the end without one
  Distribution ttft_s{kWaitBounds};
  Distribution tbt_s{kTbtBounds};
  /// What requests have waited that wait now: the longest of them, and the most goals of its own.
  struct Oldest {
    double wait_s = 0;
    double goals = 0;
  } oldest{};
};
/// In place of a class, of requests that say their goals themselves.
inline constexpr const char* kOwnGoals = "(own)";
/// The same of all classes for which there is no place.
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
    bool places = false;       ///< at level 3: it places its blocks itself, and asks who is to run
  } level;
  struct Ranks {
    std::uint32_t count = 1;        ///< of a tensor-parallel group
    std::vector<DeviceId> devices;  ///< that they have HBM of
  } ranks;                          ///< pid is that of the first that attached
  bool responsive = true;  ///< false: has not stepped (level 3) or beaten (level 1) in time
  bool dying = false;      ///< its death was noticed, its memory is quarantined
  Bytes region;
  Bytes hbm;
  Bytes dram;
  std::uint32_t requests = 0;
  std::uint64_t steps = 0;
  struct Rotations {
    std::uint64_t in = 0;
    std::uint64_t out = 0;
  } rotations;
  Bytes orphaned;            ///< regions of an earlier daemon it still maps
  std::uint64_t tokens = 0;  ///< tokens whose KV it reported
  struct Service {
    double idle_s = 0;                    ///< since its last step or heartbeat
    std::optional<DrainStatus> drain;     ///< none: it gets whatever it asks for
    std::vector<ClassService> classes{};  ///< of its requests, at level 3
  } service;
  struct Kv {
    Bytes token_bytes;  ///< of all layers and ranks; none: level 1
    double prefill_token_s =
        0;  ///< what computing one token of a prompt takes; 0: not measured yet
    std::vector<CacheStatus> caches{};  ///< of blocks that it places itself
  } kv;
};

/// Blocks (of all layer groups) that an earlier daemon left and that are of no use.
struct KeptDrops {
  std::uint64_t torn = 0;      ///< written down half, or a layer group is missing
  std::uint64_t altered = 0;   ///< their bytes are not those that were written down
  std::uint64_t misfit = 0;    ///< pool or class are not as they were
  std::uint64_t nobodys = 0;   ///< their domain is not there, or may not have as much
  std::uint64_t headless = 0;  ///< the block before them is not there
  [[nodiscard]] std::uint64_t all() const { return torn + altered + misfit + nobodys + headless; }
};

/// Monotonic counts since the daemon started.
struct Counters {
  std::uint64_t steps = 0;
  std::uint64_t rotations_out = 0;
  std::uint64_t rotations_in = 0;
  std::uint64_t rotations_forced = 0;
  std::uint64_t rotation_blocked_dram = 0;    ///< a request could not leave: no DRAM slots
  std::uint64_t rotation_blocked_growth = 0;  ///< a running request stood still for want of a block
  std::uint64_t rotation_blocked_promise = 0;  ///< steps in which a claim awaits what was promised
  std::uint64_t promises = 0;
  std::uint64_t standstills = 0;  ///< times that nobody of a domain got on
  std::uint64_t promises_expired = 0;
  std::uint64_t requests_submitted = 0;
  std::uint64_t requests_finished = 0;
  std::uint64_t requests_aborted = 0;
  /// By kvd, for whatever reason.
  struct Ended {
    std::uint64_t for_memory = 0;  ///< in a standstill
    std::uint64_t drained = 0;     ///< as their engine was taken out of service
  } ended;
  std::uint64_t tokens = 0;
  std::uint64_t copies[2] = {0, 0};  ///< finished batches by kernels::Direction order: h2d, d2h
  std::uint64_t copy_bytes[2] = {0, 0};
  std::uint64_t copy_busy_ns[2] = {0, 0};
  std::uint64_t copy_failures = 0;
  std::uint64_t region_bytes_granted = 0;
  std::uint64_t engines_attached = 0;
  std::uint64_t engines_died = 0;  ///< gone without goodbye
  struct Slabs {
    std::uint64_t bytes_scrubbed = 0;
    std::uint64_t renewed = 0;  ///< got new memory for another domain
  } slabs;
  /// Calls of engines that place their blocks themselves, and what they were told.
  struct Schedule {
    std::uint64_t calls = 0, preempted = 0, admitted = 0;
  } schedule;
  std::uint64_t stale_commands = 0;  ///< refused for key, generation or sequence
  std::uint64_t attach_paused = 0;   ///< attaching waited for a free descriptor
  Intervals ttft, tbt;
  struct Prefixes {
    std::uint64_t prompts = 0;             ///< that began, and whose content was told
    std::uint64_t asked = 0;               ///< their tokens
    std::uint64_t found[kTiers] = {0, 0};  ///< of these, those that a tier had
    std::uint64_t overlapped = 0;  ///< found tokens, brought while those before were computed
    std::uint64_t evicted_bytes[kTiers] = {0, 0};
    struct Disk {
      std::uint64_t loads = 0, stores = 0;  ///< blocks of all layer groups
      std::uint64_t load_bytes = 0, store_bytes = 0;
      std::uint64_t load_failures = 0;   ///< misses though the block was known
      std::uint64_t store_failures = 0;  ///< the block is not there
      std::uint64_t refused = 0;  ///< not written: the day's budget is spent, or no slot free
      std::uint64_t late = 0;     ///< requests that waited no longer
    } disk;
    struct Kept {
      std::uint64_t blocks[kTiers] = {0, 0};  ///< of all layer groups, of the daemon before
      std::uint64_t bytes[kTiers] = {0, 0};
      KeptDrops dropped;
    } kept;
  } prefixes;
  std::uint64_t plans = 0;           ///< placement problems given to the solver
  std::uint64_t pauses = 0;          ///< requests paused by the placement policy
  std::uint64_t streams = 0;         ///< iterations with streamed layers
  std::uint64_t layers_fetched = 0;  ///< blocks that were staged
  std::uint64_t blocks_synced = 0;   ///< copied to DRAM ahead
  struct Compacted {
    std::uint64_t blocks = 0;  ///< moved within DRAM, so that a slab became empty
    std::uint64_t bytes = 0;
  } compacted;
  std::uint64_t layerwise = 0;           ///< prompts that prefilled into DRAM
  Distribution vlt{kVltBounds};          ///< of every request in every decision, seconds
  Distribution deposit{kDepositBounds};  ///< tokens not yet due, at each report of new ones
};

/// One device: its HBM and its link.
struct DeviceStatus {
  DeviceId device;
  pool::TierStats hbm;
  std::vector<pool::SlabView> slabs;
  Bytes b_xfer;                  ///< in force at the last decision
  double link_rate[2] = {0, 0};  ///< measured bytes a second, h2d and d2h; 0: not yet
  double mean_step_s = 0;        ///< iterations of the engines on it
};

/// Rates of reads as measured; 0: not measured yet.
struct DiskRates {
  double bytes_per_s = 0;
  double latency_s = 0;  ///< of a read, before its first byte
};

/// The files of a class of cached blocks.
struct DiskModel {
  std::uint32_t id = 0;  ///< 0: of an earlier daemon, and nobody has told of it yet
  std::string folder;    ///< the shell knows
  std::string model;     ///< what its blocks are of; else what an engine of it is called
  std::string state;     ///< opening, open, closing, closed, refused
  Bytes cached;          ///< blocks that are found; of closed ones nobody knows
  Bytes bytes;           ///< of the files
  std::uint32_t engines = 0;
  double idle_s = 0;  ///< since its last use
};

/// The whole visible state at one instant; made by the control thread, read by anyone.
struct ControllerStatus {
  Counters counters;
  pool::TierStats tiers[kTiers];              ///< of HBM the sum of all devices
  std::vector<pool::SlabView> slabs[kTiers];  ///< likewise
  std::vector<DeviceStatus> devices;
  std::vector<EngineStatus> engines;
  std::vector<RequestStatus> requests;
  std::vector<PlanStatus> plans;  ///< of the engines whose layers may stream now
  Tuning tuning;
  Bytes orphaned;
  Bytes cached[kTiers];  ///< blocks that no request names any more
  Bytes on_disk;         ///< blocks there, whoever names them
  DiskRates disk_rates;  ///< of the slowest class of blocks
  std::vector<DiskModel> disk_models;
  std::optional<DrainStatus> drain;  ///< of the node; none: in service
  /// What the policies would be asked now, for whoever wants to make a decision again.
  std::vector<RotationInput> rotation_inputs;
  std::vector<AdmissionInput> admission_inputs;
  std::vector<PlacementInput> placement_inputs;
};

}  // namespace kvd::core
