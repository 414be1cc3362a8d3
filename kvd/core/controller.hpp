#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/core/status.hpp"
#include "kvd/core/tuning.hpp"
#include "kvd/pool/tier_pool.hpp"

namespace kvd::core {

/// The shape that fixes a class's slot size, with all defaults filled in.
struct ModelClass {
  std::uint32_t layers = 0;
  std::uint32_t layers_per_block = 1;
  std::uint32_t block_tokens = 16;
  Bytes bytes_per_token_per_layer;

  [[nodiscard]] std::uint32_t groups() const {
    return (layers + layers_per_block - 1) / layers_per_block;
  }
  [[nodiscard]] Bytes slot_bytes() const {
    return bytes_per_token_per_layer * std::int64_t{layers_per_block} * block_tokens;
  }
  friend auto operator<=>(const ModelClass&, const ModelClass&) = default;
};

/// Where a command came from; the shell matches the reply to its peer by it.
using ReplyTo = Id<struct ReplyToTag, std::uint64_t>;

// ---- events: what the shell feeds in
// -------------------------------------------------------------

/// A checked peer asks to join. Answered by AttachReply or Reply-free refusal (Result).
struct Attach {
  std::string name;
  DomainId domain;
  std::string domain_name;
  std::string slo_class = "default";
  std::int32_t pid = 0;
  std::uint32_t uid = 0;
  std::optional<ModelClass> model_class;  ///< none: level 1
  Bytes orphaned;
};

/// Said goodbye in order: it maps and writes nothing any more.
struct Detach {
  EngineId engine;
};
/// The keeper word says it died; its pidfd has not confirmed it. Stop scheduling, quarantine.
struct Dying {
  EngineId engine;
};
/// The process is gone: nothing of it can write any more. Reclaim.
struct Dead {
  EngineId engine;
};

struct Submit {
  RequestId request;
  Tokens prompt_tokens;
  Tokens max_new_tokens;
  Nanoseconds ttft_slo{0};  ///< 0: the class's
  Nanoseconds tbt_slo{0};
};
struct StepReport {
  RequestId request;
  Tokens tokens;
  bool finished = false;
};
struct Step {
  std::uint64_t iteration_finished = 0;
  std::uint64_t iteration_running = 0;
  PlanVersion table_version;
  std::vector<StepReport> reports;
};
struct AllocateRegion {
  Bytes bytes;
};
struct AllocateBlocks {
  RequestId request;
  Tokens tokens;
};
struct Place {
  std::vector<RequestId> requests;  ///< empty: all running ones of the session
};
struct Rotate {
  RequestId request;
  bool out = true;
};
struct Finish {
  RequestId request;
};
struct Abort {
  RequestId request;
};
struct ReleaseRegion {
  RegionId region;
};
struct Stats {};
struct Ping {};

/// One authenticated, decoded command of a session.
struct Command {
  EngineId engine;
  ReplyTo reply_to;
  TimePoint deadline;
  std::variant<Submit, Step, AllocateRegion, AllocateBlocks, Place, Rotate, Finish, Abort,
               ReleaseRegion, Stats, Ping>
      body;
};

struct CopyFinished {
  Ticket ticket;
  bool ok = true;
  Bytes bytes;
  Nanoseconds busy{0};
};
struct SlabMapped {
  EngineId engine;
  SlabIndex slab;
};
struct SlabUnmapped {
  EngineId engine;
  SlabIndex slab;
};
/// Time passes: deadlines of pending commands, unresponsive engines.
struct Tick {};
struct Retune {
  Tuning tuning;  ///< validated by the sender with Tuning::faults()
};
struct Beat {
  EngineId engine;  ///< its heartbeat word moved
};

using Event = std::variant<Detach, Dying, Dead, Command, CopyFinished, SlabMapped, SlabUnmapped,
                           Tick, Retune, Beat>;

// ---- effects: what the shell shall do
// ------------------------------------------------------------

struct RunEntry {
  RequestId request;
  Tokens present;
  Tokens tokens;
  Ticket ticket;
  bool prefill = false;
  bool swapped_in = false;
  std::uint32_t row = 0;
};
enum class Hold : std::uint8_t {  // the numbers of wire::HoldReason
  kNone = 0,
  kWaiting = 1,
  kNoMemory = 2,
  kSwappedOut = 3,
  kPromised = 4,
  kSlabNotMapped = 5,
  kForced = 6,
  kComplete = 7,
};
struct HoldEntry {
  RequestId request;
  Hold reason = Hold::kNone;
};
struct StepReply {
  std::uint64_t iteration = 0;
  PlanVersion table_version;
  std::vector<RunEntry> run;
  std::vector<HoldEntry> hold;
};
struct RegionReply {
  RegionId region;
  Bytes slab_bytes;
  std::uint32_t slabs = 0;
};
struct BlocksReply {
  std::uint32_t blocks = 0;
  PlanVersion table_version;
};
struct PlaceReply {
  struct Entry {
    RequestId request;
    std::uint32_t distance = 0;
    Blocks resident;
  };
  std::vector<Entry> entries;
  Blocks budget;
};
struct StatsReply {
  Bytes region, hbm, dram;
  std::uint64_t waiting = 0, running = 0, rotary = 0, rotations_out = 0, rotations_in = 0;
};
struct Done {};

struct Reply {
  EngineId engine;
  ReplyTo reply_to;
  std::variant<Done, StepReply, RegionReply, BlocksReply, PlaceReply, StatsReply, Error> body;
};

/// One row of a block table; slots in the order [group][block].
struct TableRow {
  RequestId request;
  Tokens tokens;
  std::uint32_t blocks = 0;
  std::uint32_t groups = 0;
  std::vector<SlotId> slots;
};
/// Publish before the reply that names the version.
struct PublishTable {
  EngineId engine;
  PlanVersion version;
  std::vector<TableRow> rows;
};

/// Move slots between the tiers. `pairs` are (hbm, dram); the direction says which is the source.
struct CopySlots {
  struct Pair {
    SlotId hbm;
    SlotId dram;
  };
  Ticket ticket;
  EngineId engine;  ///< whose fence carries the ticket
  bool to_hbm = false;
  Bytes slot_bytes;
  std::vector<Pair> pairs;
};
/// Zero a whole slab or single slots of `tier`; reported back as CopyFinished with the ticket.
struct Scrub {
  Ticket ticket;
  Tier tier = Tier::kHbm;
  std::vector<SlabIndex> slabs;
  std::vector<SlotId> slots;
  Bytes slot_bytes;
};
/// Send the slab's fd. Region none: it backs slots; else it is `position` of `count` of the region.
struct SendSlab {
  EngineId engine;
  SlabIndex slab;
  RegionId region;
  std::uint32_t position = 0;
  std::uint32_t count = 0;
};
/// Ask the engine to unmap a slab (cooperative).
struct AskUnmap {
  EngineId engine;
  SlabIndex slab;
};
/// Something an operator wants to read; goes to the log and the event list.
struct Note {
  enum class Level : std::uint8_t { kInfo, kWarning, kError } level = Level::kInfo;
  EngineId engine;
  std::string text;
};

using Effect = std::variant<Reply, PublishTable, CopySlots, Scrub, SendSlab, AskUnmap, Note>;

struct AttachGrant {
  EngineId engine;
  Generation generation;
  ClassId class_id;
  ModelClass model_class;
  std::uint32_t max_rows = 0;
  std::uint32_t max_slots = 0;
};

/// Decides everything: who holds which slot, who runs, what is copied where. Deterministic: the
/// same events at the same times give the same effects. The daemon feeds it sockets, copies and the
/// steady clock; the simulator a trace and a virtual one.
/// Source:  kvd design (architecture sections 3-5, 7); SuperInfer Algorithm 1 for the rotation.
/// Owner:   control thread.
/// Errors:  every command is answered by exactly one Reply effect, now or by its deadline.
class Controller {
 public:
  struct Config {
    pool::TierPool::Config hbm;
    pool::TierPool::Config dram;
    pool::Quotas hbm_quotas;
    pool::Quotas dram_quotas;
    Tuning tuning;
    Nanoseconds step_timeout{5'000'000'000};
    std::uint32_t max_requests_per_engine = 1024;
    bool validate_each_event = false;  ///< tests: abort on a broken invariant after every event
  };

  /// InvalidArgument naming every fault of the configuration.
  static Result<std::unique_ptr<Controller>> create(Config config);
  ~Controller();

  /// Admits a peer, or says why not (InvalidArgument for an impossible shape, QuotaExceeded, …).
  [[nodiscard]] Result<AttachGrant> attach(const Attach& attach, TimePoint now);
  /// Appends the effects of one event, in the order they must be carried out.
  void on(const Event& event, TimePoint now, std::vector<Effect>& effects);

  [[nodiscard]] ControllerStatus status(TimePoint now) const;
  [[nodiscard]] const Tuning& tuning() const;
  /// Regions of an engine, for accounting at its death.
  [[nodiscard]] Bytes region_bytes(EngineId engine) const;
  [[nodiscard]] std::string validate() const;

 private:
  struct State;
  explicit Controller(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kvd::core
