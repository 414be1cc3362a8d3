#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/core/door/effects.hpp"
#include "kvd/core/door/events.hpp"
#include "kvd/core/door/inputs.hpp"
#include "kvd/core/ledger/request.hpp"
#include "kvd/store/index/index.hpp"
#include "kvd/store/memory/tiers.hpp"
#include "planner/model/fitted_line.hpp"
#include "planner/model/fitted_plane.hpp"
#include "planner/policy/length_predictor.hpp"
#include "planner/policy/load.hpp"

/// What the Controller knows of an engine's session, and of a domain.
namespace kvd::core {

/// What an event must find out about a domain without walking all its requests; kept up to date at
/// each change.
struct Domain {
  Line line;  ///< requests that wait, without memory and without a claim on any
  std::map<std::uint64_t, Request*> claims;  ///< in the order of service
  std::size_t requests = 0;
  std::map<DeviceId, std::uint64_t> progress;  ///< changes when a request makes progress there
};

struct Region {
  RegionId id;
  std::vector<SlabIndex> slabs;
  std::optional<RegionName> name{};  ///< of one that an earlier daemon granted
};
/// What stands at a position of a region or a space.
struct Backing {
  RegionId region;  ///< none: nothing stands there
  SlabIndex slab;
};
/// The most that requests of a space with its tightest goal have used recently.
struct Usual {
  Bytes bytes;
  Nanoseconds goal{0};
  TimePoint at{0};
};
/// Addresses of an engine behind which regions come and go.
struct Space {
  std::vector<Backing> at;  ///< by position
  Demand demand;            ///< as of the last time it asked for its share
  Usual usual;
  TimePoint told{0};
};
/// A region that could not be granted for lack of memory.
struct RefusedRegion {
  TimePoint at{0};
  Bytes bytes;
};

/// Blocks of a region that are stored under digests, and found and loaded by them.
struct EngineCache {
  store::KeySpace space;
  std::string model;  ///< for people; its engine named it
  Bytes block_bytes;
  Bytes slot_bytes;  ///< slot size of its class
  std::uint32_t block_tokens = 0;
  store::SecondsPerByte saved;
  RegionId region;  ///< may also be a space; none: the cache is only for lookups and drops
  std::int64_t blocks = 0;
  std::shared_ptr<const store::BlockLayout> layout;  ///< null: no region
};

/// Level-1 memory of a session, and what it holds.
struct Leases {
  std::map<RegionId, Region> regions;
  std::map<RegionId, Space> spaces;
  std::map<CacheId, EngineCache> caches;
  std::optional<RefusedRegion> refused;  ///< the last refused one
  Bytes kept;                            ///< bytes of tables for all of it: see Requests::keep
};

/// Which layers of a session's requests stay: the plan in force, and the plan that is being made.
struct LayerPlan {
  std::uint64_t number = 0;  ///< number of the last problem given to the solver
  bool asked = false;        ///< the answer is awaited
  std::string policy;        ///< the policy that was asked
  std::string adopted;       ///< the policy that made the plan in force
  std::vector<RequestKey> asked_for;
  std::optional<RequestKey> resuming;  ///< the paused request among them

  std::vector<RequestKey> batch;  ///< batch of the plan in force; empty: there is none
  std::int64_t steps_left = 0;
  TimePoint adopted_at{0};
  double step_s = 0;      ///< predicted
  double stall_s = 0;     ///< the part of it spent waiting for layers
  bool mismatch = false;  ///< steps take another time than was predicted
  double gap = 0;         ///< relative, between the plan's step time and its proved lower bound
  bool ended_since_pause = false;
};

/// Which layers of its running requests an engine that places its blocks keeps in HBM.
struct LayersPlaced {
  std::uint32_t layers = 0;                  ///< of the model
  std::vector<PlaceReply::Entry> asked_for;  ///< whom the solver has, with the blocks of a layer
  std::vector<PlaceReply::Entry> plan;       ///< the last one made
};

/// A `place` command that waits for the solver.
struct PendingPlace {
  ReplyTo reply_to;
  std::string policy;
  PlacementInput input;
};

/// What a tensor-parallel group has been told to do next. It is decided for the first rank that
/// asks, and kept until all ranks have taken it. A rank may ask for the next answer before the
/// others took this one (with a pipelined engine it does); then it waits.
struct RankAnswer {
  std::uint64_t finished = 0, running = 0;  ///< iterations that the asking rank named
  StepReply reply;
  std::vector<bool> taken;  ///< by rank
};
struct RankSteps {
  /// By rank: the last iteration that it says it has finished.
  std::vector<std::uint64_t> finished;
  std::optional<RankAnswer> answer;    ///< none before the first step
  std::optional<RankAnswer> previous;  ///< the answer before, for a rank whose reply was lost
  std::vector<Command> ahead;          ///< steps that wait for the others, in order of arrival
};

/// Blocks of a session's requests that are copied to DRAM before they have to leave.
struct CopiesAhead {
  std::set<Request*, ByKey> wanting;  ///< requests with a sealed block that DRAM may lack
  Bytes under_way;
  bool short_of_dram = false;  ///< layers that should leave found no room there
  bool crowded = false;        ///< a prompt that comes in chunk by chunk found no room
};

/// An engine, or the node, is out of service: it gets nothing new.
struct Draining {
  TimePoint since{0};
  std::optional<TimePoint> deadline;  ///< what is left then ends; none: it runs to its end
};

/// Whether the engine is there to step.
struct Life {
  TimePoint attached{0};
  bool dying = false;
  bool parting = false;      ///< it dies because a rank said goodbye; the other ranks still have to
  TimePoint dying_since{0};  ///< valid while it dies
  bool responsive = true;
  std::optional<TimePoint> silent_since;  ///< set while it is silent and that has been told
  TimePoint last_step{0};
  TimePoint last_beat{0};
  std::optional<TimePoint> awaited_since;  ///< it is silent, and others wait for what it holds
  bool evicted = false;                    ///< awaited for too long: its end has been asked for
  std::optional<Draining> draining;        ///< the engine itself is out of service
  bool drained_told = false;
};

/// Requests of an engine that places its blocks, as of its last call.
struct PlacedRequests {
  std::vector<PlacedRequest> all;  ///< by id
  std::uint32_t waiting = 0, running = 0, parked = 0;
  bool waited = false;  ///< a request waits until the next call
  TimePoint last_call{0};

  /// Whether what the last call said may still be true: an engine for which nobody waits has
  /// nothing to ask.
  [[nodiscard]] bool is_news(TimePoint now) const {
    return now - last_call <= std::chrono::seconds(1);  // kvd design
  }
  /// Null: the last call did not name the request.
  [[nodiscard]] PlacedRequest* find(RequestId request) {
    const auto at = std::lower_bound(
        all.begin(), all.end(), request,
        [](const PlacedRequest& each, RequestId id) { return each.key.request < id; });
    return at != all.end() && at->key.request == request ? &*at : nullptr;
  }
};

struct Iterations {
  std::uint64_t granted = 0;  ///< the last granted iteration
  /// The last that the engine, with all its ranks, reported as finished.
  std::uint64_t finished = 0;
  /// The last whose tokens are counted; in a group, the first rank to report one counts.
  std::uint64_t reported = 0;
  std::uint64_t table_version = 0;
  bool stepping = false;    ///< the last step reply had something to run
  bool overlapped = false;  ///< the last step came while an iteration ran
  /// Prompt tokens that the next iteration may have; none: any number.
  std::optional<Tokens> chunk;
  Tokens granted_prefill;   ///< prompt tokens of the last granted iteration
  Tokens reported_prefill;  ///< prompt tokens of the last reported one
};

/// The mean of the last few values.
class RecentMean {
 public:
  void add(double value) {
    sum_ += value - values_[next_];
    values_[next_] = value;
    next_ = (next_ + 1) % values_.size();
    count_ = std::min(count_ + 1, values_.size());
  }
  [[nodiscard]] double mean() const { return count_ == 0 ? 0 : sum_ / static_cast<double>(count_); }

 private:
  std::array<double, 16> values_{};
  std::size_t count_ = 0, next_ = 0;
  double sum_ = 0;
};

/// What the engine's steps and answers have shown (knowledge.hpp).
struct Costs {
  /// Compute time of an iteration without prefill, over the tokens of its batch. It forgets slowly,
  /// because a batch's tokens change little from step to step.
  planner::FittedLine compute{0.998};
  /// Iteration time over the contexts of decoding requests, and prompts.
  planner::FittedPlane step{0.99};
  /// What prefill adds to an iteration, where the engine places.
  planner::FittedLine prefill{0.97};
  double token_s = 0;   ///< what a token of such a context adds to an iteration; 0: not known yet
  double decode_s = 0;  ///< mean time of an iteration without prefill; 0: not known yet
  double prefill_token_s = 0;        ///< what a prompt token adds to an iteration; 0: not known yet
  double prefill_share = 1;          ///< mean share of an iteration with prompt tokens
  double prefill_ahead_s = 0;        ///< prefill of prompts that have begun, as of the last step
  planner::LengthPredictor lengths;  ///< lengths of its answers
  planner::LoadMemory load;          ///< whether the last prefix that DRAM had was loaded

  // Engines that place their own blocks show these as well.
  planner::FittedLine decode{0.98};  ///< time of iterations without prefill, over their decodes
  RecentMean lateness;  ///< how long past the due time of their next token requests came back
  RecentMean prompts;   ///< tokens of the requests that came in
  std::int64_t most_running = 0;  ///< most requests that ran at a time
  double tokens_per_s = 0;        ///< tokens made while a request waited; 0: not known yet
  struct Window {
    double s = 0;
    std::int64_t tokens = 0;
  } window;  ///< the window in which a request waited, and the tokens made in it
};

/// How well the engine's requests are served, by class. Classes become series of metrics, so there
/// are few: the last place is for all that find no place of their own.
class ClassServices {
 public:
  static constexpr std::size_t kMost = 8;

  /// `own`: the class of requests that name none; it has the first place.
  explicit ClassServices(std::string own = {}) : all_(1) { all_[0].name = std::move(own); }

  [[nodiscard]] std::uint8_t place_of(std::string_view name) {
    for (std::size_t i = 0; i < all_.size(); ++i) {
      if (all_[i].name == name || i + 1 == kMost) return static_cast<std::uint8_t>(i);
    }
    const auto place = static_cast<std::uint8_t>(all_.size());
    all_.emplace_back().name = place + 1 == kMost ? kOtherClasses : name;
    return place;
  }
  [[nodiscard]] ClassService& operator[](std::uint8_t place) { return all_[place]; }
  [[nodiscard]] const std::vector<ClassService>& all() const { return all_; }

 private:
  std::vector<ClassService> all_;
};

/// Totals since the engine attached.
struct Totals {
  std::uint64_t steps = 0, rotations_in = 0, rotations_out = 0, tokens = 0;
  /// Tokens served. When the engine's first request comes they are raised to the least of its
  /// domain's other engines: an engine saves up no turns while it has nothing to do.
  Tokens served{};
  ClassServices services{};
};

/// An engine's session: of one process, or of all ranks of a tensor-parallel group.
struct Session {
  EngineId id;
  Attach info;
  Generation generation;
  ClassId class_id;  ///< none: level 1
  ModelClass shape;
  Life life;
  Iterations iterations;
  std::optional<RankSteps> ranks;  ///< of a tensor-parallel group
  Costs costs;
  Totals totals;

  LayerPlan plan;
  /// Its layers may stream, because a placement policy decides (as of its step).
  bool streaming = false;
  CopiesAhead ahead;
  std::optional<PlacedRequests> placed;  ///< only of an engine that has asked for its schedule
  /// What the engine has asked about layers, last.
  std::variant<std::monostate, PendingPlace, LayersPlaced> layers;

  std::vector<Request*> active;     ///< its requests, by id
  std::vector<Request*> inside;     ///< those of them that do not wait in line
  Line line;                        ///< those that wait in line
  std::vector<HoldEntry> given_up;  ///< requests that kvd ended, and why; the next reply says so
  Leases leases;

  [[nodiscard]] std::uint32_t groups() const { return shape.groups(); }
  [[nodiscard]] const Devices& devices() const { return info.devices; }
  [[nodiscard]] bool on(DeviceId device) const { return info.devices.has(device); }
  /// The share in which level 1, and any engine with one device, has all its HBM.
  [[nodiscard]] Share share() const { return {info.domain, info.devices.first()}; }
  /// Layer groups of the ranks on the device.
  [[nodiscard]] std::uint32_t groups_on(DeviceId device) const {
    return info.devices.ranks_on(device, shape.ranks) * shape.rank_groups();
  }
  [[nodiscard]] DeviceId device_of_group(std::uint32_t group) const {
    return info.devices.several() ? info.devices.of_rank(group / shape.rank_groups())
                                  : info.devices.first();
  }
  /// Where the group's layers of the block are staged: the place of its rank.
  [[nodiscard]] std::uint32_t staging_place(std::uint32_t block, std::uint32_t group) const {
    return block * shape.ranks + group / shape.rank_groups();
  }
  [[nodiscard]] store::Taker taker() const {
    return {class_id, info.domain, id, shape.slot_bytes(), info.devices.first()};
  }
  [[nodiscard]] std::int64_t blocks_for(Tokens count) const {
    return pieces(count, Tokens(shape.block_tokens));
  }
  [[nodiscard]] Bytes bytes_for(Tokens count) const {
    return shape.slot_bytes() * (blocks_for(count) * groups());
  }
  /// The part of these bytes on the device.
  [[nodiscard]] Bytes bytes_for(Tokens count, DeviceId device) const {
    return shape.slot_bytes() * (blocks_for(count) * groups_on(device));
  }
};

}  // namespace kvd::core
