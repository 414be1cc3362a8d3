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
#include "kvd/store/index/labels.hpp"
#include "kvd/store/memory/key.hpp"
#include "kvd/store/memory/shared_list.hpp"

/// What the shell feeds into the Controller. For a tensor-parallel group it feeds what holds for
/// all ranks: a slab is mapped once every rank has mapped it; the engine is dying with its first
/// rank and dead with its last. Effects for the group's engine are meant for every rank.
namespace kvd::core {

/// A checked peer asks to join. This is no event: Controller::attach() takes it and returns an
/// AttachGrant or the reason why not. A tensor-parallel group attaches once, as one engine: see
/// ModelClass::ranks.
struct Attach {
  std::string name;
  DomainId domain;
  std::string domain_name;
  std::string slo_class = "default";
  std::int32_t pid = 0;
  std::uint32_t uid = 0;
  std::optional<ModelClass> model_class;  ///< none: level 1
  /// Its engine waits for layers; if not, none of its layers stream.
  bool streams_layers = false;
  Bytes orphaned;
  Bytes kept;       ///< bytes that the shell keeps for the session
  Devices devices;  ///< devices of its HBM
};

/// What an admitted peer gets.
struct AttachGrant {
  EngineId engine;        ///< id of rank 0; those of a group's other ranks follow, and stand for it
  Generation generation;  ///< likewise
  ClassId class_id;
  ModelClass model_class;
  std::uint32_t max_rows = 0;
};

/// All ranks of a group have attached: these devices replace what the first rank said. Before this
/// event nothing is asked of the group.
struct RanksPlaced {
  EngineId engine;
  Devices devices;              ///< one for each rank; each of them exists
  bool streams_layers = false;  ///< all of them wait for layers
};
/// An engine said goodbye in order: it maps and writes nothing any more.
struct Detach {
  EngineId engine;
};
/// The keeper word says that the engine died, but its pidfd has not confirmed it. Stop scheduling
/// it and quarantine its memory.
struct Dying {
  EngineId engine;
  bool parting = false;  ///< a rank of it said goodbye in order; the others still map its memory
};
/// The process is gone: nothing of it can write any more. Reclaim its memory.
struct Dead {
  EngineId engine;
};

/// The length of an answer, as foreseen by a source that knows more than the answers that ended.
struct PredictedLength {
  Tokens low, high;
};
struct Submit {
  RequestId request;
  Tokens prompt_tokens;
  Tokens max_new_tokens;
  Nanoseconds ttft_slo{0};  ///< 0: the class's
  Nanoseconds tbt_slo{0};
  /// None: the length is learned from answers that ended.
  std::optional<PredictedLength> predicted = {};
};
/// What full blocks of requests hold. Requests that have ended are skipped.
struct NameBlocks {
  struct Block {
    RequestId request;
    std::uint32_t number = 0;  ///< counts from 0, in each layer group
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
/// A region, granted once enough slabs are free: requests of the domain make way. At its deadline
/// the answer is DeadlineExceeded. It is OutOfMemory or QuotaExceeded at once where waiting cannot
/// help.
struct AllocateRegion {
  Bytes bytes;
};
struct AllocateBlocks {
  RequestId request;
  Tokens tokens;
};
struct Place {
  std::vector<RequestId> requests;  ///< empty: all running requests of the session
};
/// Running requests of an engine that streams layers and places its blocks itself. The answer is a
/// PlaceReply of the last plan made.
struct PlanLayers {
  struct Request {
    RequestId request;
    Tokens tokens;  ///< whose KV it has
  };
  Blocks capacity;  ///< blocks of one layer that HBM has room for
  Bytes block_bytes;
  Nanoseconds step{0};  ///< that a step computes
  std::uint32_t layers = 0;
  Tokens block_tokens{16};
  std::vector<Request> requests;
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
/// What a region is called by its engine and by every daemon that serves it: the daemon that
/// granted it, and its number there.
struct RegionName {
  BootId boot;
  RegionId number;
  friend auto operator<=>(const RegionName&, const RegionName&) = default;
};
/// A region that an earlier daemon granted is the session's again. The engine maps it already, so
/// nothing is sent. The answer is that to AllocateRegion.
struct ClaimRegion {
  RegionName name;
  Digest proof;
};
/// The longest that users of these requests may be without a token, after the first one.
struct SetGaps {
  struct Gap {
    RequestId request;
    Nanoseconds gap{0};  ///< 0: the class's
  };
  std::vector<Gap> gaps;
};
/// Addresses of an engine behind which regions come and go. Spaces are numbered as regions are, so
/// that a cache can name either.
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
/// What requests of a space need that have one goal and have all begun, or all not.
struct Need {
  Bytes bytes;                  ///< what all of them would use
  Bytes least;                  ///< what the oldest needs to run, with what is kept
  Nanoseconds age{0};           ///< of the oldest
  Nanoseconds ttft{0};          ///< 0: the goal of the class
  std::uint32_t slo_class = 0;  ///< slo_class_number(); 0: the domain's
  bool begun = false;           ///< they have their first tokens
};
/// What the requests of a space need. The answer is what it may have: ValueReply, in bytes.
struct Demand {
  Bytes kept;                 ///< never handed back
  Bytes least;                ///< what its oldest request needs to run, with `kept`
  Bytes wanted;               ///< what all would use, with `kept`
  Bytes grain;                ///< beyond `kept` the memory comes and goes by multiples of this
  Nanoseconds age{0};         ///< age of its oldest request; 0: it has none
  std::vector<Need> needs{};  ///< by goal; empty: an older client does not tell
};
struct ShareSpace {
  RegionId space;
  Demand demand;
};
/// Bytes of an earlier daemon's regions that the engine no longer maps.
struct ReleaseOrphaned {
  Bytes bytes;
};
/// A cache of a session, over blocks of one of its regions.
using CacheId = Id<struct CacheIdTag, std::uint64_t>;
using store::BlockPiece;
struct OpenCache {
  Fingerprint fingerprint;  ///< blocks under equal fingerprints can replace each other
  RegionId region;          ///< none: the cache is only for lookups and drops
  std::int64_t blocks = 0;  ///< blocks of the region
  Bytes block_bytes;        ///< bytes of all pieces of a block; 0: blocks of requests
  std::uint32_t block_tokens = 0;
  std::vector<BlockPiece> pieces;
};
struct CloseCache {
  CacheId cache;
};
/// The name of the model whose blocks these are, for people.
struct DescribeCache {
  CacheId cache;
  std::string model;
};
/// What routers may be told of consecutive blocks. The answer is how many labels are kept.
struct LabelBlocks {
  CacheId cache;
  Digest parent;  ///< the block before the first; zeros: there is none
  std::string lora;
  std::vector<Digest> digests;
  std::vector<std::uint32_t> tokens;  ///< of all of them
};
/// What has changed of the labelled blocks. The answer is Labels::Changes.
struct AskChanges {
  CacheId cache;
  store::Labels::Cursor seen;
};
/// What an engine that places its own blocks wants done with blocks. See EngineCaches.
struct CacheBlocks {
  enum class Op : std::uint8_t {
    kLookup,
    kStore,
    kLoad,
    kDrop,
    kRetain,
    kPin,
    kDemote,
    kPrefetch,
    kUnpin
  };
  CacheId cache;
  Op op = Op::kLookup;
  bool park = false;  ///< for a store: the blocks stay until they are dropped or the session ends
  std::uint64_t ticket = 0;  ///< for store and load; chosen by the engine
  std::vector<Digest> digests;
  /// For store and load: where in the region; as many as digests.
  std::vector<std::uint32_t> blocks;
  bool await = false;  ///< for a lookup: WouldBlock while the answer of remote servers is awaited
  Nanoseconds retain{0};  ///< for a retain, 0: not any more, and a prefetch: how long from now on
};
struct Stats {};
struct Ping {};
/// The state of an engine that picks its own blocks, before its next step. The answer is a
/// ScheduleReply.
struct Schedule {
  enum class State : std::uint8_t { kWaiting, kParked, kRunning };
  struct Request {
    RequestId request;
    State state = State::kWaiting;
    Tokens prompt;
    Tokens computed;  ///< tokens whose KV it has; for a parked request those that are kept
    Tokens generated;
    Tokens max_new;
    std::int64_t blocks = 0;  ///< blocks that come free when it leaves
    /// Blocks that it needs to come in; 0: the number follows from its tokens.
    std::int64_t blocks_to_return = 0;
    bool stays = false;           ///< it runs, and leaving would cost all that it computed
    std::uint32_t slo_class = 0;  ///< slo_class_number(); 0: the domain's
    TimePoint arrived{0};
    std::optional<TimePoint> first_token, last_token;
    Nanoseconds ttft{0};  ///< 0: the goal of the class
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
               Abort, ReleaseRegion, ClaimRegion, ReleaseOrphaned, OpenCache, CloseCache,
               DescribeCache, LabelBlocks, AskChanges, CacheBlocks, Stats, Ping, Schedule,
               OpenSpace, CloseSpace, PlaceRegion, ShareSpace, SetGaps, PlanLayers>
      body;
  std::uint32_t rank = 0;  ///< the rank of a tensor-parallel group that sent it
};

struct SlabMapped {
  EngineId engine;
  SlabIndex slab;
};
struct SlabUnmapped {
  EngineId engine;
  SlabIndex slab;
};
/// The shell could not send a slab, and gave up: a region that the slab belonged to ends, and so
/// does its grant.
struct SlabUnsent {
  EngineId engine;
  SlabIndex slab;
  RegionId region;  ///< none: the slab was for blocks
};
/// RenewSlab was carried out, or a slab that had no memory at the start has some now.
struct SlabRenewed {
  SlabIndex slab;
  Tier tier = Tier::kHbm;
};
/// The answer to SolvePlacement, or why there is none.
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
    kMade,   ///< there are no files, and none were to be made
    kRoom,   ///< files that other classes have open take all the room there is
  };
  DiskId disk;
  std::uint32_t slots = 0;  ///< none: this class has no files
  Lack lack = Lack::kFiles;
  Bytes bytes{};  ///< bytes of the files
  Bytes grain{};  ///< the files grow and shrink by this; none: they do neither
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
/// Blocks of an earlier daemon, any number of them: later events go on with what one leaves. Until
/// `all` are known, nothing is written to the disk.
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
/// The answer to FindRemote.
struct RemoteFound {
  Ticket ticket;
  std::vector<bool> there;  ///< by name; false where its server does not answer
};
/// A server of the remote store went off or came back: what is known of it is known no more.
struct RemoteChanged {};
/// How a WriteDisk, ReadDisk, WriteRemote or ReadRemote ended. Not ok: the block is not there,
/// whatever the reason.
struct DiskFinished {
  Ticket ticket;
  bool ok = true;
  std::uint64_t generation = 0;  ///< generation of what was written
  /// The slot does not hold the block; if false, it may be asked again.
  bool gone = false;
  /// The device may still touch the memory: a second event with the ticket follows.
  bool memory_held = false;
};
/// KeepRows was carried out.
struct RowsKept {
  Ticket ticket;
};
/// What an earlier daemon left, before anything else is fed. No engine knows the memory.
struct AdoptRows {
  std::vector<KeptBlocks> rows;  ///< rows whose bytes are unchanged; their class is not known yet
  /// All slabs that have bytes of the earlier daemon.
  std::array<std::vector<SlabIndex>, kTiers> slabs;
  KeptDrops dropped;  ///< what the shell found to be of no use
};
/// Slabs of HBM in which an engine of an earlier daemon may still compute. Comes after AdoptRows.
struct AdoptRegions {
  struct Left {
    RegionName name;
    Digest proof;     ///< SHA-256 of what its engine alone knows
    DomainId domain;  ///< none: nobody may have the region
    std::vector<SlabIndex> slabs;
  };
  std::vector<Left> regions;
};
/// Time passes, which matters for deadlines of pending commands and for unresponsive engines.
struct Tick {};
struct Retune {
  Tuning tuning;  ///< validated by the sender with Tuning::faults()
};
/// New quotas (SIGHUP). They are refused with a note when guarantees exceed a pool; the old ones
/// stay then.
struct Requota {
  pool::Quotas hbm;
  pool::Quotas dram;
};
/// Gives up, in all tiers and domains, what requests left for others to find and nobody runs on.
struct ClearCache {};
/// An operator takes an engine out of service, or puts it back. For an engine that is already out
/// the new deadline holds.
struct Drain {
  EngineId engine;      ///< none: the whole node, including engines that want to attach
  bool cancel = false;  ///< puts it back in service
  /// Patience with what runs; none: until it ends.
  std::optional<Nanoseconds> patience = std::nullopt;
  /// What is cached is written to the remote store. Precondition: it is the node, and has one.
  bool to_remote = false;
};
struct Beat {
  EngineId engine;  ///< its heartbeat word moved
};

using Event =
    std::variant<RanksPlaced, Detach, Dying, Dead, Command, CopyFinished, PlanReady, SlabMapped,
                 SlabUnmapped, SlabUnsent, SlabRenewed, DiskNamed, DiskOpened, DiskResized,
                 DiskClosed, DiskFound, DiskFinished, RemoteFound, RemoteChanged, RowsKept,
                 AdoptRows, AdoptRegions, Tick, Retune, Requota, ClearCache, Drain, Beat>;

}  // namespace kvd::core
