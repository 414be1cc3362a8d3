#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "ipc/vocabulary/digest.hpp"
#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/core/door/effects.hpp"
#include "kvd/core/door/events.hpp"
#include "kvd/core/door/status.hpp"
#include "kvd/core/door/tuning.hpp"
#include "kvd/store/blocks/blocks.hpp"
#include "kvd/store/memory/staging.hpp"
#include "planner/model/seconds.hpp"

/// What the Controller knows of a request.
namespace kvd::core {

struct Session;

/// What a victim on another engine has to give. kForBytes: any bytes will do, so the promise ends
/// when as many are free elsewhere. kForSlots: only its own slots will do, because they stand in a
/// slab that has to change class, or because a running request starves for them.
enum class Promise : std::uint8_t { kForBytes, kForSlots };

/// The versions that answers about a request's layers are based on: while these stay the same, so
/// do the answers.
struct LayersSeen {
  std::uint64_t table = 0;    ///< store::BlockTable::changes
  std::uint64_t staging = 0;  ///< store::Staging::changes
  std::uint32_t sealed = 0;
  bool paused = false;
  bool fetching = false;
  std::vector<bool> away;
};

/// Answers about the layers of one request. Each answer notes the number of the version it is based
/// on (Request::layers_version).
struct LayerAnswers {
  LayersSeen seen;
  std::uint64_t version = 1;  ///< number of `seen`; 0 stands for no version

  /// The slots of a published table. With all blocks in HBM they depend on nothing else.
  struct Row {
    /// All blocks are in HBM, so `version` counts the table's moves in HBM instead.
    bool complete = false;
    std::uint64_t version = 0;
    store::SharedList<SlotId> slots;
  } row;
  /// The fetches of an iteration; their `after` is not set.
  struct Fetches {
    std::uint64_t version = 0;
    std::vector<StreamLayers::Fetch> list;
  } fetches;
  /// Versions at which nothing was left to do.
  std::uint64_t evicted = 0, fetched = 0, staged = 0;
  /// Likewise for layers that leave, and for all layers.
  std::uint64_t copied_away = 0, copied = 0;
};

/// What its user asked for.
struct Goal {
  Tokens prompt;
  Tokens max_new;
  Slo slo;
  std::uint8_t slo_class = 0;  ///< place in Totals::services
  std::optional<PredictedLength> predicted;
};

/// How far the request is. `tokens` is what the engine has reported as complete; `planned` adds
/// what the last granted iteration will append. With a pipelined engine the two differ by the
/// iteration that is still running.
struct Progress {
  Tokens tokens;
  Tokens planned;
  std::uint64_t last_iteration = 0;  ///< the last one it was granted in
  Tokens granted;                    ///< tokens of that iteration
};

/// Which of its layers stream, and how (streams.hpp).
struct StreamedLayers {
  store::Staging staging;
  std::vector<bool> away;      ///< layer groups whose full blocks should be in DRAM; empty: none
  std::uint32_t distance = 0;  ///< k, where `away` follows a distance
  LayerAnswers known;
  std::uint64_t staging_free = 0;  ///< layer_mark from which staging may be overwritten
  std::uint64_t streamed_in = 0;   ///< the last iteration that streams some of it
  std::vector<Ticket> streams;     ///< live streams with fetches of it
};

struct Times {
  TimePoint arrived{0};
  TimePoint first_token{0};  ///< valid once a token was made
  TimePoint last_token{0};   ///< likewise
  bool has_token = false;
  /// When its next token is due to the user (Knowledge::pace); set once it has made one.
  std::optional<TimePoint> due;
  TimePoint run_since{0};
  bool late = false;  ///< the goal of its next token has passed, and that is counted
  /// Its place among those whose goals pass (requests.hpp).
  std::optional<TimePoint> watched;
};

/// Its place among the other requests.
struct Order {
  std::uint64_t claim = 0;      ///< order of its claim on memory; 0: none
  bool in_line = false;         ///< listed among those that wait (requests.hpp)
  bool awaits_mapping = false;  ///< its claim waits for a slab acknowledgement
  bool curbed = false;          ///< may not grow, so that others can end (reservations.hpp)
  bool sheltered = false;       ///< all others wait for it, so it is nobody's victim
  std::uint32_t place = 0;      ///< its place among those in line (serving_order.hpp)
  std::uint32_t skips = 0;
  std::uint64_t paused = 0;  ///< its place among those paused
  std::uint64_t rotations = 0;
};

/// What its blocks hold, as far as its engine has told (prefixes.hpp).
struct Content {
  Fingerprint fingerprint;
  std::vector<Digest> chain;  ///< digests of its leading blocks
  std::uint32_t named = 0;    ///< how many of these blocks others can find
  bool apart = false;    ///< its next block has a digest by which other requests' blocks are found
  bool put_off = false;  ///< some of its blocks are named later
  bool awaits_disk = false;  ///< its claim waits for the disk
  /// How many blocks were known when the disk was asked last; it is asked again once more are
  /// known.
  std::optional<std::uint32_t> asked_disk{};
};

/// Its transfers under way, at most one of each kind.
struct Moves {
  Ticket rotation;
  Ticket sync;   ///< the background copy to DRAM
  Ticket fetch;  ///< fetch of layers that should stay
  Ticket in;     ///< swap-in that its engine has to wait for at the next run
};

/// What it computes.
enum class Phase : std::uint8_t { kPrompt, kDecode };
/// Where a request is. kGoing and kComing: a copy of it is under way.
enum class Location : std::uint8_t {
  kOut,     ///< nowhere: it waits and holds nothing
  kIn,      ///< in HBM, or streamed through it
  kGoing,   ///< on its way to DRAM
  kParked,  ///< in DRAM alone
  kComing,  ///< on its way back
};
/// What keeps a request from running besides lack of memory.
enum class Verdict : std::uint8_t {
  kNone,
  kHeldBack,   ///< waits: the admission policy would not have it prefill now
  kPaused,     ///< paused by the placement policy: it keeps its seat, but does not run
  kForcedOut,  ///< by a rotate command, until one brings it back
  kHopeless,   ///< ends at its engine's next step, because memory cannot be found
  kDrained,    ///< ends once no iteration has it, because its engine is out of service
};

/// What is known of a request, whether kvd places its blocks as its engine reports (Request), or
/// its engine does, and tells (PlacedRequest). Fields that every walk over requests reads come
/// first.
struct Seen {
  RequestKey key;
  Session* session = nullptr;  ///< its engine's
  Phase phase = Phase::kPrompt;
  Location place = Location::kOut;
  Verdict verdict = Verdict::kNone;
  /// It came in or could not leave, and has made no token since: not a victim.
  bool fresh = false;
  Order order;
  Progress progress;
  Goal goal;
  Times times;

  [[nodiscard]] RequestState state() const;
  [[nodiscard]] bool runs() const { return place == Location::kIn; }
  [[nodiscard]] bool waits() const { return place == Location::kOut; }
  [[nodiscard]] bool prefills() const { return runs() && phase == Phase::kPrompt; }
  [[nodiscard]] bool decodes() const { return runs() && phase == Phase::kDecode; }
  /// Tokens of its answer made so far.
  [[nodiscard]] Tokens answer() const {
    return times.has_token ? progress.tokens - goal.prompt + Tokens(1) : Tokens(0);
  }
  /// Tokens that no iteration has yet, and that it needs before it makes its next one.
  [[nodiscard]] Tokens to_compute() const {
    return std::max(Tokens(0), goal.prompt + answer() - progress.planned);
  }
  /// When its next token is late; none: it owes no token.
  [[nodiscard]] std::optional<TimePoint> goal_passes() const {
    if (!times.has_token) return times.arrived + std::min(goal.slo.ttft, kLongestGoal);
    if (answer() >= goal.max_new) return std::nullopt;
    return times.last_token + std::min(goal.slo.tbt, kLongestGoal);
  }
};

/// A request between submit and finish.
///
/// Any block may be in HBM, in DRAM or in both, whatever its place, with two exceptions. A parked
/// request has nothing in HBM but what other requests have there, too. And a running request has
/// its blocks that are not full in HBM. Blocks that are missing in HBM when it runs are streamed
/// through staging.
struct Request : Seen {
  std::optional<Promise> promised;  ///< victim of another's need, until its engine's next step
  bool leaving = false;             ///< victim whose running iteration has not finished yet
  bool layerwise = false;           ///< it prefills chunk by chunk into DRAM, and then leaves
  bool starved = false;      ///< it runs, but lacks a block for its next token or for staging
  std::uint32_t sealed = 0;  ///< how many leading blocks are sealed
  std::uint32_t synced = 0;  ///< how many leading blocks are in DRAM, or on their way there
  store::BlockTable table;

  StreamedLayers layers;
  Moves moves;
  Content content;

  [[nodiscard]] std::int64_t hbm_slots() const {
    return table.in(Tier::kHbm) + layers.staging.count();
  }
  [[nodiscard]] std::int64_t dram_slots() const { return table.in(Tier::kDram); }
  [[nodiscard]] bool holds_hbm() const { return hbm_slots() > 0; }
  /// The version of what answers about its layers are based on. It grows with every change.
  [[nodiscard]] std::uint64_t layers_version();
  [[nodiscard]] bool paused() const { return verdict == Verdict::kPaused; }
  [[nodiscard]] bool forced_out() const { return verdict == Verdict::kForcedOut; }
  /// It was granted no iteration yet: its first blocks were found computed.
  [[nodiscard]] bool begins_with_found() const {
    return content.named > 0 && progress.last_iteration == 0;
  }
  /// Ends the verdict if it is `which`.
  void lift(Verdict which) {
    if (verdict == which) verdict = Verdict::kNone;
  }
  /// The tokens that it must have room for in order to run: one more than it has, so that a request
  /// that comes in can always make one, and never more than it asked for.
  [[nodiscard]] Tokens room_to_run() const {
    const Tokens present = phase == Phase::kDecode ? progress.tokens : goal.prompt;
    return std::min(present + Tokens(1), goal.prompt + goal.max_new);
  }
  /// All its blocks are in HBM.
  [[nodiscard]] bool complete() const {
    return table.arriving() == 0 && layers.staging.empty() && table.all_in(Tier::kHbm);
  }
  /// It wants HBM and has no claim on it yet.
  [[nodiscard]] bool queues() const {
    const bool may_run = verdict == Verdict::kNone || verdict == Verdict::kHeldBack;
    return may_run && order.claim == 0 && (place == Location::kOut || place == Location::kParked);
  }
};

/// A request whose engine places its blocks, as of the engine's last call (placing.hpp).
/// `progress.tokens` includes what it computes again; `planned` is what it has.
struct PlacedRequest : Seen {
  std::int64_t blocks = 0;  ///< blocks that come free when it leaves, or that it needs to come in
  Nanoseconds own_gap{0};   ///< 0: the gap of its class
  bool stays = false;       ///< it runs, and leaving would cost all that it computed
  bool ran = false;         ///< it runs now or ran before
  /// The answer let it in: it runs, though its engine may not say so for long.
  bool let_in = false;
  bool sent_out = false;  ///< the answer told it to leave
  WaitReason waits_for = WaitReason::kNone;

  /// It has computed work, which would be lost with it.
  [[nodiscard]] bool begun() const { return !waits() || times.has_token; }
};

/// Orders requests by when their goals pass.
struct ByGoal {
  bool operator()(const Request* a, const Request* b) const {
    return a->times.watched != b->times.watched ? a->times.watched < b->times.watched
                                                : a->key < b->key;
  }
};
/// Orders requests by when they came.
struct ByArrival {
  bool operator()(const Request* a, const Request* b) const {
    const TimePoint first = a->times.arrived, second = b->times.arrived;
    return first != second ? first < second : a->key < b->key;
  }
};
using Line = std::set<Request*, ByArrival>;
struct ByKey {
  bool operator()(const Request* a, const Request* b) const { return a->key < b->key; }
};

}  // namespace kvd::core
