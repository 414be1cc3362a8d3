#pragma once

#include <array>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "ipc/vocabulary/digest.hpp"
#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/core/door/devices.hpp"
#include "kvd/core/door/effects.hpp"
#include "kvd/core/door/status.hpp"
#include "kvd/core/door/tuning.hpp"
#include "kvd/pool/quota.hpp"
#include "kvd/store/memory/key.hpp"
#include "kvd/store/memory/shared_list.hpp"

/// What the shell feeds into the Controller. Of a tensor-parallel group it feeds what holds for all
/// of it: a slab is mapped once every rank has mapped it, the engine is dying with its first rank
/// and dead with its last. Effects for its engine are meant for every rank.
namespace kvd::core {

/// A checked peer asks to join. No event: Controller::attach() takes it and returns an AttachGrant
/// or the reason why not. A tensor-parallel group attaches once, as one engine: see
/// ModelClass::ranks.
struct Attach {
  std::string name;
  DomainId domain;
  std::string domain_name;
  std::string slo_class = "default";
  std::int32_t pid = 0;
  std::uint32_t uid = 0;
  std::optional<ModelClass> model_class;  ///< none: level 1
  bool streams_layers = false;  ///< its engine waits for layers; if not, none of its streams
  bool skips_ahead = false;     ///< its engine goes on behind tokens that it did not compute
  Bytes orphaned;
  Bytes kept;       ///< by the shell for the session
  Devices devices;  ///< where it has its HBM
};

/// What a peer gets that was admitted.
struct AttachGrant {
  EngineId engine;        ///< of rank 0; those of a group's other ranks follow, and stand for it
  Generation generation;  ///< likewise
  ClassId class_id;
  ModelClass model_class;
  std::uint32_t max_rows = 0;
};

/// All ranks of a group have attached: their devices, in place of what the first one said. Before
/// it nothing is asked of the group.
struct RanksPlaced {
  EngineId engine;
  Devices devices;              ///< one for each rank, each of which is there
  bool streams_layers = false;  ///< all of them wait for layers
};
/// Said goodbye in order: it maps and writes nothing any more.
struct Detach {
  EngineId engine;
};
/// The keeper word says it died; its pidfd has not confirmed it. Stop scheduling, quarantine.
struct Dying {
  EngineId engine;
  bool parting = false;  ///< a rank of it said goodbye, in order; the others still map its memory
};
/// The process is gone: nothing of it can write any more. Reclaim.
struct Dead {
  EngineId engine;
};

/// How long an answer will be, as somebody foresees who knows more than the answers that ended.
struct PredictedLength {
  Tokens low, high;
};
struct Submit {
  RequestId request;
  Tokens prompt_tokens;
  Tokens max_new_tokens;
  Nanoseconds ttft_slo{0};  ///< 0: the class's
  Nanoseconds tbt_slo{0};
  std::optional<PredictedLength> predicted = {};  ///< none: learned from answers that ended
};
/// What full blocks of requests hold. Requests that have ended are passed over.
struct NameBlocks {
  struct Block {
    RequestId request;
    std::uint32_t number = 0;  ///< from 0, of each layer group
    Digest digest;
  };
  Fingerprint fingerprint;
  std::vector<Block> blocks;
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
/// Answered once enough slabs are free: requests of the domain make way. At its deadline:
/// DeadlineExceeded. OutOfMemory or QuotaExceeded at once where waiting cannot help.
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
/// How long users of requests may be without a token at most, after the first.
struct SetGaps {
  struct Gap {
    RequestId request;
    Nanoseconds gap{0};  ///< 0: the class's
  };
  std::vector<Gap> gaps;
};
/// Addresses of an engine behind which regions come and go. Numbered as regions are, so that a
/// cache names either.
struct OpenSpace {
  std::uint32_t slabs = 0;
};
struct CloseSpace {
  RegionId space;
};
/// The region's slabs stand at these positions, in their order.
struct PlaceRegion {
  RegionId space;
  RegionId region;
  std::vector<std::uint32_t> positions;
};
/// What requests of a space with one goal need, that have begun or not.
struct Need {
  Bytes bytes;                  ///< of what all would use
  Bytes least;                  ///< what the oldest needs to run, with what is kept
  Nanoseconds age{0};           ///< of the oldest
  Nanoseconds ttft{0};          ///< 0: that of the class
  std::uint32_t slo_class = 0;  ///< slo_class_number(); 0: the domain's
  bool begun = false;           ///< they have their first tokens
};
/// What the space's requests need. Answered with what it may have: ValueReply, in bytes.
struct Demand {
  Bytes kept;                 ///< never handed back
  Bytes least;                ///< what its oldest request needs to run, with `kept`
  Bytes wanted;               ///< what all would use, with `kept`
  Bytes grain;                ///< beyond `kept` it comes and goes by multiples of this
  Nanoseconds age{0};         ///< of its oldest request; 0: there is none
  std::vector<Need> needs{};  ///< by goal; empty: an older client does not tell
};
struct ShareSpace {
  RegionId space;
  Demand demand;
};
/// Bytes of regions of an earlier daemon that the engine maps no longer.
struct ReleaseOrphaned {
  Bytes bytes;
};
/// A cache of a session, over blocks of one of its regions.
using CacheId = Id<struct CacheIdTag, std::uint64_t>;
using store::BlockPiece;
struct OpenCache {
  Fingerprint fingerprint;  ///< blocks of equal ones are each other's
  RegionId region;          ///< none: to look up and drop alone
  std::int64_t blocks = 0;  ///< of the region
  Bytes block_bytes;        ///< of all pieces
  std::uint32_t block_tokens = 0;
  std::vector<BlockPiece> pieces;
};
struct CloseCache {
  CacheId cache;
};
/// What people are told that its blocks are of.
struct DescribeCache {
  CacheId cache;
  std::string model;
};
/// What an engine that places by itself wants done with blocks. See EngineCaches.
struct CacheBlocks {
  enum class Op : std::uint8_t { kLookup, kStore, kLoad, kDrop };
  CacheId cache;
  Op op = Op::kLookup;
  bool park = false;         ///< of a store: until they are dropped, or the session ends
  std::uint64_t ticket = 0;  ///< of store and load, chosen by the engine
  std::vector<Digest> digests;
  std::vector<std::uint32_t> blocks;  ///< of store and load: where in the region, as many
};
struct Stats {};
struct Ping {};
/// What an engine that picks its blocks itself has before its next step. Answered by ScheduleReply.
struct Schedule {
  enum class State : std::uint8_t { kWaiting, kParked, kRunning };
  struct Request {
    RequestId request;
    State state = State::kWaiting;
    Tokens prompt;
    Tokens computed;  ///< whose KV it has; of a parked one, that are kept
    Tokens generated;
    Tokens max_new;
    std::int64_t blocks = 0;            ///< come free when it leaves
    std::int64_t blocks_to_return = 0;  ///< needed to come in; 0: by its tokens
    bool stays = false;                 ///< it runs, and leaving would cost all that it computed
    std::uint32_t slo_class = 0;        ///< slo_class_number(); 0: the domain's
    TimePoint arrived{0};
    std::optional<TimePoint> first_token, last_token;
    Nanoseconds ttft{0};  ///< 0: the class's
    Nanoseconds tbt{0};
  };
  std::int64_t free_blocks = 0;
  std::int64_t total_blocks = 0;
  Bytes block_bytes;  ///< 0: not said
  Tokens block_tokens{16};
  Nanoseconds last_step{0};  ///< 0: no iteration since the last call
  Tokens last_step_prefill;
  std::int64_t last_step_decodes = 0;
  Tokens max_batched_tokens;     ///< 0: no bound
  std::int64_t max_running = 0;  ///< 0: no bound
  std::vector<Request> requests;
};

/// One authenticated, decoded command of a session.
struct Command {
  EngineId engine;
  ReplyTo reply_to;
  TimePoint deadline;
  std::variant<Submit, NameBlocks, Step, AllocateRegion, AllocateBlocks, Place, Rotate, Finish,
               Abort, ReleaseRegion, ReleaseOrphaned, OpenCache, CloseCache, DescribeCache,
               CacheBlocks, Stats, Ping, Schedule, OpenSpace, CloseSpace, PlaceRegion, ShareSpace,
               SetGaps>
      body;
  std::uint32_t rank = 0;  ///< of a tensor-parallel group: who says it
};

struct SlabMapped {
  EngineId engine;
  SlabIndex slab;
};
struct SlabUnmapped {
  EngineId engine;
  SlabIndex slab;
};
/// The shell could not send a slab, and gave up: a region it belonged to ends, and so does its
/// grant.
struct SlabUnsent {
  EngineId engine;
  SlabIndex slab;
  RegionId region;  ///< none: it was for blocks
};
/// RenewSlab was carried out, or a slab that had no memory at the start has some now.
struct SlabRenewed {
  SlabIndex slab;
  Tier tier = Tier::kHbm;
};
/// What SolvePlacement asked for, or why it could not be answered.
struct PlanReady {
  EngineId engine;
  std::uint64_t number = 0;
  bool query = false;
  Result<planner::PlacementDecision> decision;
};
/// The disk can be used from now on.
struct DiskNamed {
  store::OutsideName name;
};
/// OpenDisk was carried out, or could not be.
struct DiskOpened {
  enum class Lack : std::uint8_t {
    kFiles,  ///< a fault, which may pass
    kMade,   ///< there are none, and none were to be made
    kRoom,   ///< what other classes have open takes all there is
  };
  DiskId disk;
  std::uint32_t slots = 0;  ///< none: this class has no files
  Lack lack = Lack::kFiles;
  Bytes bytes{};  ///< of the files
  Bytes grain{};  ///< of which they grow and shrink; none: they do not
};
/// ResizeDisk was carried out, as far as there is room.
struct DiskResized {
  DiskId disk;
  std::uint32_t slots = 0;
  Bytes bytes;
};
/// CloseDisk was carried out.
struct DiskClosed {
  DiskId disk;
};
/// Blocks of an earlier daemon, any number: later events go on with what one leaves. Until `all`
/// are known, nothing is written to the disk.
struct DiskFound {
  struct Block {
    std::uint32_t slot = 0;
    std::uint64_t generation = 0;
    Digest domain, name;
  };
  using Blocks = store::SharedList<Block>;
  DiskId disk;
  Blocks blocks;
  bool all = false;
};
/// How a WriteDisk or ReadDisk ended. Not ok: the block is not there, whatever the reason.
struct DiskFinished {
  Ticket ticket;
  bool ok = true;
  std::uint64_t generation = 0;  ///< of what was written
  /// The slot does not hold the block; else it may be asked again.
  bool gone = false;
  /// The device may still touch the memory: a second event with the ticket follows.
  bool memory_held = false;
};
/// KeepRows was carried out.
struct RowsKept {
  Ticket ticket;
};
/// What an earlier daemon has left, before anything else is fed. No engine knows the memory.
struct AdoptRows {
  std::vector<KeptBlocks> rows;  ///< whose bytes are what they were; without a class
  std::array<std::vector<SlabIndex>, kTiers> slabs;  ///< all that have bytes of before
  KeptDrops dropped;                                 ///< what the shell found to be of no use
};
/// Time passes: deadlines of pending commands, unresponsive engines.
struct Tick {};
struct Retune {
  Tuning tuning;  ///< validated by the sender with Tuning::faults()
};
/// New quotas (SIGHUP). Refused with a note when guarantees exceed a pool; the old ones stay then.
struct Requota {
  pool::Quotas hbm;
  pool::Quotas dram;
};
/// What requests left for others to find, and nobody runs on, is given up in all tiers and domains.
struct ClearCache {};
/// An operator takes an engine out of service, or puts it back. Again for one that is out: the new
/// deadline holds.
struct Drain {
  EngineId engine;                                     ///< none: the whole node, and who would come
  bool cancel = false;                                 ///< back in service
  std::optional<Nanoseconds> patience = std::nullopt;  ///< with what runs; none: until it ends
};
struct Beat {
  EngineId engine;  ///< its heartbeat word moved
};

using Event = std::variant<RanksPlaced, Detach, Dying, Dead, Command, CopyFinished, PlanReady,
                           SlabMapped, SlabUnmapped, SlabUnsent, SlabRenewed, DiskNamed, DiskOpened,
                           DiskResized, DiskClosed, DiskFound, DiskFinished, RowsKept, AdoptRows,
                           Tick, Retune, Requota, ClearCache, Drain, Beat>;

}  // namespace kvd::core
