#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

/// The messages of kvd's protocol as they stand on the wire: fixed little-endian PODs.
/// The authority on their meaning is ipc/PROTOCOL.md; this file only fixes sizes and offsets.
namespace kvd::wire {

static_assert(std::endian::native == std::endian::little, "kvd's wire format is little-endian");

constexpr std::uint32_t kMagic = 0x3144564bu;  // "KVD1"
constexpr std::uint16_t kVersionMin = 2;
constexpr std::uint16_t kVersionMax = 2;
constexpr std::uint32_t kMaxAttachFrame = 1024;
constexpr std::uint32_t kMaxCommandFrame = 256 * 1024;
constexpr std::uint32_t kMaxRequestsPerStep = 4096;
constexpr std::size_t kMostUnanswered = 64;  // commands of a session that wait for their answers
constexpr std::size_t kNameBytes = 32;
constexpr std::size_t kModelBytes = 192;
constexpr std::size_t kPathBytes = 108;
constexpr std::size_t kMessageBytes = 256;
constexpr std::int64_t kMaxTimeoutNs = 3'600'000'000'000;  // so that arrival + timeout fits
constexpr std::uint64_t kMaxTokens = (std::uint64_t{1} << 40) - 1;
constexpr std::uint64_t kMaxRegionBytes = std::uint64_t{1} << 50;

// The bounds of a model shape. Within them the product, a slot's size, fits into 64 bits.
constexpr std::uint32_t kMaxLayers = 1024;
constexpr std::uint32_t kMaxBlockTokens = 1024;
constexpr std::uint64_t kMaxBytesPerTokenPerLayer = std::uint64_t{1} << 20;

enum class MessageType : std::uint16_t {
  kReserved = 0,
  // Attach socket.
  kHello = 1,
  kWelcome = 2,
  kRefused = 3,
  kMapSlab = 4,
  kSlabMapped = 5,
  kUnmapSlab = 6,
  kSlabUnmapped = 7,
  kGoodbye = 8,
  kJoinGroup = 9,
  // Command transport; a reply has the type of its command with kReplyBit set.
  kSubmit = 32,
  kStep = 33,
  kAllocate = 34,
  kPlace = 35,
  kRotate = 36,
  kFinish = 37,
  kAbort = 38,
  kStats = 39,
  kPing = 40,
  kName = 41,
  kCacheOpen = 48,
  kCache = 49,
  kSchedule = 50,
  kSpace = 51,
  kShare = 52,
  kCacheModel = 53,
  kGaps = 54,
  kNeeds = 55,
  kCacheLabel = 56,
  kCacheChanges = 57,
  kClaim = 58,
  kLayers = 60,
};
constexpr std::uint16_t kReplyBit = 0x8000;

/// Starts every frame on either transport.
struct FrameHeader {
  std::uint32_t magic = kMagic;
  std::uint16_t version = kVersionMax;
  std::uint16_t type = 0;
  std::uint32_t length = 0;  ///< bytes of the whole frame, this header included
  std::uint32_t reserved = 0;
};
static_assert(sizeof(FrameHeader) == 16);

// ---- attach socket ------------------------------------------------------------------------------

/// The shape that fixes a class's slot size, and the device. layers = 0: the session rents regions
/// only (level 1).
struct ModelShape {
  std::uint32_t layers = 0;
  std::uint32_t layers_per_block = 0;  ///< g; 0: smallest divisor of layers with slot >= 256 KiB
  std::uint32_t block_tokens = 0;      ///< 0: 16
  /// Where the session has its HBM, in the order of the daemon's configuration. Used by sessions
  /// that rent regions only, too. Daemons that know one device take 0 alone.
  std::uint32_t device = 0;
  std::uint64_t bytes_per_token_per_layer = 0;  ///< K and V together
};
static_assert(sizeof(ModelShape) == 24);

enum class TransportKind : std::uint32_t { kZmq = 0, kRing = 1 };

/// What kind of fd comes with a slab, and so how an engine maps it.
enum class SlabKind : std::uint32_t {
  kHostMemfd = 1,  ///< mmap it
  kCudaVmm = 2,    ///< import it as an allocation of the GPU that Welcome names
};
constexpr std::uint32_t kSlabKinds = 2;

/// The kind's bit in Hello.
constexpr std::uint32_t slab_kind_bit(SlabKind kind) {
  return 1u << (static_cast<std::uint32_t>(kind) - 1);
}

/// In Hello: the engine waits for each layer group of a streamed iteration, and tells of those
/// done.
constexpr std::uint32_t kStreamsLayers = 1u << 0;
/// In Hello: the engine is a rank of a tensor-parallel group, and JoinGroup follows.
constexpr std::uint32_t kJoinsGroup = 1u << 1;
constexpr std::uint32_t kMaxRanks = 64;

struct Hello {
  FrameHeader header;
  std::uint16_t version_min = kVersionMin;
  std::uint16_t version_max = kVersionMax;
  std::uint32_t transport = 0;  ///< TransportKind
  ModelShape shape;
  std::array<char, kNameBytes> name{};           ///< shown in status; NUL-terminated
  std::array<std::uint8_t, 16> previous_boot{};  ///< of the session before, or zeros; not read yet
  std::uint64_t orphaned_bytes = 0;              ///< regions of an earlier boot still mapped
  /// The kinds of slab that the engine can map, by slab_kind_bit(), one at least. Unknown bits are
  /// passed over: this layout never changes, but kinds may be added.
  std::uint32_t slab_kinds = slab_kind_bit(SlabKind::kHostMemfd);
  std::uint32_t abilities = 0;  ///< bits; unknown ones are passed over, too
};
static_assert(sizeof(Hello) == 112 && offsetof(Hello, shape) == 24 &&
              offsetof(Hello, orphaned_bytes) == 96 && offsetof(Hello, slab_kinds) == 104);

/// Follows a Hello with kJoinsGroup. All ranks name the same group and have the same shape, and
/// uid; the first to come makes the group. Like Hello's, this layout never changes.
struct JoinGroup {
  FrameHeader header;
  std::uint64_t group = 0;  ///< chosen by the engine, not 0
  std::uint32_t ranks = 0;  ///< 2 to kMaxRanks
  std::uint32_t rank = 0;
};
static_assert(sizeof(JoinGroup) == 32);

/// Comes with two fds: the client page (read-write) and the table memfd (read-only for the peer).
struct Welcome {
  FrameHeader header;
  std::array<std::uint8_t, 16> boot_id{};
  std::array<std::uint8_t, 16> session_key{};
  std::uint64_t generation = 0;
  std::uint32_t engine_id = 0;
  std::uint32_t class_id = 0;  ///< 0: level 1 only
  std::uint32_t domain_id = 0;
  std::uint32_t layer_groups = 0;
  ModelShape shape;  ///< with the defaults filled in
  std::uint64_t slot_bytes = 0;
  std::uint64_t slab_bytes = 0;
  std::uint64_t table_bytes = 0;
  std::uint64_t client_page_bytes = 0;
  std::array<char, kPathBytes> command_endpoint{};  ///< ZeroMQ address, NUL-terminated
  std::uint32_t slab_kind = static_cast<std::uint32_t>(SlabKind::kHostMemfd);
  std::array<std::uint8_t, 16> device_uuid{};  ///< the GPU of CUDA slabs; zeros for memfds
};
static_assert(sizeof(Welcome) == 256 && offsetof(Welcome, shape) == 72 &&
              offsetof(Welcome, command_endpoint) == 128 && offsetof(Welcome, slab_kind) == 236);

struct Refused {
  FrameHeader header;
  std::uint16_t code = 0;  ///< ErrorCode
  std::uint16_t version_min = kVersionMin;
  std::uint16_t version_max = kVersionMax;
  std::uint16_t reserved = 0;
  std::array<char, kMessageBytes> message{};  ///< NUL-terminated
};
static_assert(sizeof(Refused) == 280);

/// Comes with one fd. A class slab (region 0) backs slot ids; a region slab is mapped at
/// position * bytes of its region.
struct MapSlab {
  FrameHeader header;
  std::uint64_t region = 0;
  std::uint64_t bytes = 0;
  std::uint32_t slab = 0;
  std::uint32_t position = 0;
  std::uint32_t count = 0;  ///< slabs of the region; 0 for a class slab
  std::uint32_t reserved = 0;
};
static_assert(sizeof(MapSlab) == 48);

/// kSlabMapped, kUnmapSlab and kSlabUnmapped.
struct SlabNotice {
  FrameHeader header;
  std::uint64_t region = 0;
  std::uint32_t slab = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(SlabNotice) == 32);

/// The engine leaves in order: it maps and writes nothing any more.
struct Goodbye {
  FrameHeader header;
};
static_assert(sizeof(Goodbye) == 16);

// ---- commands -----------------------------------------------------------------------------------

/// Starts every command. The sequence grows by one a command, so a lost one is noticed.
struct CommandHeader {
  FrameHeader frame;
  std::array<std::uint8_t, 16> key{};
  std::uint64_t generation = 0;
  std::uint64_t sequence = 0;
  std::int64_t timeout_ns = 0;  ///< relative; the daemon stamps arrival
};
static_assert(sizeof(CommandHeader) == 56);

/// Starts every reply; after a failure a NUL-terminated sentence of `message_bytes` follows.
struct ReplyHeader {
  FrameHeader frame;
  std::array<std::uint8_t, 16> boot_id{};
  std::uint64_t generation = 0;
  std::uint64_t sequence = 0;
  std::uint16_t code = 0;  ///< ErrorCode
  std::uint16_t message_bytes = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(ReplyHeader) == 56);

struct SubmitBody {
  std::uint64_t request = 0;
  std::uint64_t prompt_tokens = 0;
  std::uint64_t max_new_tokens = 0;
  std::int64_t ttft_slo_ns = 0;  ///< 0: the domain's class default
  std::int64_t tbt_slo_ns = 0;
};
static_assert(sizeof(SubmitBody) == 40);

/// How long the user of a request may be without a token at most, after the first.
struct RequestGap {
  std::uint64_t request = 0;
  std::uint64_t gap_ns = 0;  ///< 0: the class's
};
static_assert(sizeof(RequestGap) == 16);

/// Followed by `count` RequestGaps.
struct GapsBody {
  std::uint32_t count = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(GapsBody) == 8);

/// What a full block of a request holds.
struct BlockName {
  std::uint64_t request = 0;
  std::uint32_t block = 0;  ///< from 0, of each layer group
  std::uint32_t reserved = 0;
  std::array<std::uint8_t, 32> digest{};
};
static_assert(sizeof(BlockName) == 48);

/// Followed by `count` BlockNames.
struct NameBody {
  /// What the bytes of the blocks depend on beside tokens: model, number format, layout.
  std::array<std::uint8_t, 32> fingerprint{};
  std::uint32_t count = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(NameBody) == 40);

enum StepReportFlags : std::uint32_t { kReportFinished = 1u << 0, kReportFlags = 1u };

/// What one request did in the iteration that just finished.
struct StepReport {
  std::uint64_t request = 0;
  std::uint64_t tokens = 0;  ///< tokens whose KV is complete in its blocks
  std::uint32_t flags = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(StepReport) == 24);

/// Followed by `count` StepReports.
struct StepBody {
  std::uint64_t iteration_finished = 0;  ///< highest iteration whose reads and writes are done
  std::uint64_t iteration_running = 0;   ///< the one still executing; 0: none
  std::uint64_t table_version = 0;       ///< version the running iteration reads; 0: none
  std::uint32_t count = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(StepBody) == 32);

enum RunFlags : std::uint32_t {
  kRunPrefill = 1u << 0,
  kRunSwappedIn = 1u << 1,
  kRunStreamed = 1u << 2,  ///< before layer group l: wait for fence_layers >= layer_mark(it, l + 1)
  kRunFlags = 7u,
};

/// One request of the next iteration.
struct RunEntry {
  std::uint64_t request = 0;
  std::uint64_t tokens_present = 0;  ///< tokens whose KV its blocks hold already
  std::uint64_t ticket = 0;  ///< wait for this H2D ticket before touching its blocks; 0: none
  std::uint32_t tokens = 0;  ///< tokens to process: a prefill chunk, or 1
  std::uint32_t flags = 0;
  std::uint32_t distance = 0;  ///< k: layers k, 2k, … are streamed; 0: all resident
  std::uint32_t row = 0;       ///< its row in the block table
};
static_assert(sizeof(RunEntry) == 40);

enum class HoldReason : std::uint32_t {
  kNone = 0,
  kWaiting = 1,        ///< not admitted yet
  kNoMemory = 2,       ///< admitted, its blocks are not free yet
  kSwappedOut = 3,     ///< rotated out
  kPromised = 4,       ///< another engine's blocks are promised but not acknowledged yet
  kSlabNotMapped = 5,  ///< the session has not acknowledged the slab yet
  kForced = 6,         ///< rotated out by a rotate command
  kComplete = 7,       ///< has all the tokens it asked for: report it finished
  kPaused = 8,         ///< the batch meets its SLOs only without it
  kOutOfMemory = 9,    ///< kvd has ended it: nobody could go on for want of memory
  kDrained = 10,       ///< kvd has ended it: its engine is taken out of service
};

struct HoldEntry {
  std::uint64_t request = 0;
  std::uint32_t reason = 0;  ///< HoldReason
  std::uint32_t reserved = 0;
};
static_assert(sizeof(HoldEntry) == 16);

/// Followed by `run_count` RunEntries and `hold_count` HoldEntries.
struct StepReplyBody {
  std::uint64_t iteration = 0;  ///< number of the iteration this reply is for
  std::uint64_t table_version = 0;
  std::uint32_t run_count = 0;
  std::uint32_t hold_count = 0;
};
static_assert(sizeof(StepReplyBody) == 24);

enum class AllocateKind : std::uint32_t { kRegion = 1, kBlocks = 2 };

/// kRegion: `amount` bytes of whole slabs. kBlocks: room for `amount` more tokens of `request`.
struct AllocateBody {
  std::uint32_t kind = 0;
  std::uint32_t reserved = 0;
  std::uint64_t request = 0;
  std::uint64_t amount = 0;
};
static_assert(sizeof(AllocateBody) == 24);

/// kRegion: id, slabs and slab size; the slabs' fds travel on the attach socket.
/// kBlocks: region 0, count = new blocks per layer group. The next step's table shows them.
struct AllocateReplyBody {
  std::uint64_t region = 0;
  std::uint64_t slab_bytes = 0;
  std::uint32_t count = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(AllocateReplyBody) == 24);

/// A region that an earlier daemon granted, and that the engine still maps, is the session's again.
/// The reply is that to an allocation of it; no descriptor is sent.
struct ClaimBody {
  std::array<std::uint8_t, 16> boot_id{};      ///< of the daemon that granted it first
  std::array<std::uint8_t, 16> session_key{};  ///< of the session that it was granted to
  std::uint64_t region = 0;                    ///< what that daemon called it
};
static_assert(sizeof(ClaimBody) == 40);

/// Plans placement for the session's running requests now, against the real budget.
/// Followed by `count` request ids (u64); 0: all of them.
struct PlaceBody {
  std::uint32_t count = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(PlaceBody) == 8);

struct PlaceEntry {
  std::uint64_t request = 0;
  std::uint64_t resident_blocks = 0;
  std::uint32_t distance = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(PlaceEntry) == 24);

/// Followed by `count` PlaceEntries.
struct PlaceReplyBody {
  std::uint64_t budget_blocks = 0;
  std::uint32_t count = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(PlaceReplyBody) == 16);

enum class RotateDirection : std::uint32_t { kOut = 1, kIn = 2 };

struct RotateBody {
  std::uint64_t request = 0;
  std::uint32_t direction = 0;  ///< RotateDirection
  std::uint32_t reserved = 0;
};
static_assert(sizeof(RotateBody) == 16);

enum class TargetKind : std::uint32_t {
  kRequest = 1,
  kRegion = 2,
  kOrphaned = 3,
  kCache = 4,
  kSpace = 5
};

/// finish: the request is done, or the region is unmapped and handed back, or bytes of regions of
/// an earlier boot are unmapped, or the cache or the space is not used any more. abort: a request
/// is given up, whatever its state.
struct TargetBody {
  std::uint64_t target = 0;
  std::uint32_t kind = 0;  ///< TargetKind
  std::uint32_t reserved = 0;
};
static_assert(sizeof(TargetBody) == 16);

// ---- caches: engines that place their blocks themselves -----------------------------------------

/// Piece of block b: `bytes` of the region from `offset` + b * `stride` on.
struct BlockPiece {
  std::uint64_t offset = 0;
  std::uint64_t stride = 0;
  std::uint64_t bytes = 0;
};
static_assert(sizeof(BlockPiece) == 24);

/// Followed by `count` BlockPieces: none without a region, else their bytes are those of a block.
struct CacheOpenBody {
  std::array<std::uint8_t, 32> fingerprint{};  ///< blocks of equal ones are each other's
  std::uint64_t region = 0;                    ///< 0: to look up and drop alone
  std::uint64_t blocks = 0;                    ///< of the region
  std::uint64_t block_bytes = 0;
  std::uint32_t block_tokens = 0;
  std::uint32_t count = 0;
};
static_assert(sizeof(CacheOpenBody) == 64);

enum class CacheOp : std::uint32_t {
  kLookup = 1,
  kStore = 2,
  kLoad = 3,
  kDrop = 4,
  kRetain = 5,
  kPin = 6,
  kDemote = 7,
  kPrefetch = 8,
  kUnpin = 9,
};
enum CacheFlags : std::uint32_t {
  kCachePark = 1u << 0,   ///< of a store
  kCacheAwait = 1u << 1,  ///< of a lookup
};

struct CacheBlock {
  std::array<std::uint8_t, 32> digest{};
  std::uint32_t block = 0;  ///< of the region; 0 where nothing is copied
  std::uint32_t reserved = 0;
};
static_assert(sizeof(CacheBlock) == 40);

/// Followed by `count` CacheBlocks.
struct CacheBody {
  std::uint64_t cache = 0;
  std::uint64_t ticket = 0;  ///< of store and load: chosen by the engine, not 0
  std::uint32_t op = 0;      ///< CacheOp
  std::uint32_t flags = 0;   ///< CacheFlags
  std::uint32_t count = 0;
  std::uint32_t retain_ms = 0;  ///< of retain (0: not any more) and prefetch: how long from now on
};
static_assert(sizeof(CacheBody) == 32);

// ---- spaces: addresses of an engine behind which regions come and go ----------------------------

/// space 0: opens a space of `slabs` slabs of addresses. Otherwise the slabs of `region` stand, in
/// their order, at the `count` positions (u32) that follow, until the region is handed back.
struct SpaceBody {
  std::uint64_t space = 0;
  std::uint64_t region = 0;
  std::uint32_t slabs = 0;
  std::uint32_t count = 0;
};
static_assert(sizeof(SpaceBody) == 24);

/// How much memory of all spaces may this one have now? Sizes in bytes.
struct ShareBody {
  std::uint64_t space = 0;
  std::uint64_t kept = 0;    ///< never handed back
  std::uint64_t least = 0;   ///< what its oldest request needs to run, `kept` included
  std::uint64_t wanted = 0;  ///< what all requests would use, `kept` included
  std::uint64_t grain = 0;   ///< beyond `kept` it comes and goes by multiples of this
  std::uint64_t age_ns = 0;  ///< of its oldest request; 0: there is none
};
static_assert(sizeof(ShareBody) == 48);

/// What a space's requests with one goal need. Those that await their first token and those that
/// have it are told apart.
struct SpaceNeed {
  std::uint64_t bytes = 0;      ///< of what all of its requests would use
  std::uint64_t least = 0;      ///< what the oldest of them needs to run, `kept` included
  std::uint64_t age_ns = 0;     ///< of the oldest
  std::uint64_t ttft_ns = 0;    ///< their goal; 0: that of their class
  std::uint32_t slo_class = 0;  ///< slo_class_number(); 0: the domain's
  std::uint32_t begun = 0;      ///< 1: they have their first tokens
};
static_assert(sizeof(SpaceNeed) == 40);
/// The most goals that are told apart. Further goals are counted with one of these.
constexpr std::uint32_t kMaxNeeds = 16;

/// Followed by `count` SpaceNeeds.
struct NeedsBody {
  ShareBody share;
  std::uint32_t count = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(NeedsBody) == 56);

/// What the blocks of a cache are of, as people are told. It decides nothing: the fingerprint does.
struct CacheModelBody {
  std::uint64_t cache = 0;
  std::array<char, kModelBytes> model{};  ///< NUL-terminated
};
static_assert(sizeof(CacheModelBody) == 200);

constexpr std::size_t kLoraBytes = 64;
/// The most blocks that one command labels.
constexpr std::uint32_t kMaxLabelled = 1024;

/// What routers may be told of consecutive blocks. Followed by `count` digests (32 bytes), then the
/// tokens of each block (u32), `block_tokens` of them.
struct CacheLabelBody {
  std::uint64_t cache = 0;
  std::array<std::uint8_t, 32> parent{};  ///< the block before the first; zeros: there is none
  std::array<char, kLoraBytes> lora{};    ///< NUL-terminated; empty: no adapter
  std::uint32_t count = 0;
  std::uint32_t block_tokens = 0;
};
static_assert(sizeof(CacheLabelBody) == 112);

/// How much of the changes of a cache the asker has seen; zeros: nothing.
struct CacheCursor {
  std::uint64_t life = 0;
  std::uint64_t start = 0;
  std::uint64_t position = 0;
};

struct CacheChangesBody {
  std::uint64_t cache = 0;
  CacheCursor seen;
};
static_assert(sizeof(CacheChangesBody) == 32);

enum ChangesFlags : std::uint32_t {
  kChangesOver = 1u << 0,  ///< it starts over: whatever was told before is void
  kChangesMore = 1u << 1,  ///< there are more: ask again
  kChangesFlags = 3u,
};

/// Followed by `count` CacheChanges, then the tokens (u32) of each, as many as it says.
struct CacheChangesReplyBody {
  CacheCursor next;
  std::uint32_t flags = 0;  ///< ChangesFlags
  std::uint32_t count = 0;
  std::uint32_t tokens = 0;  ///< of all of them
  std::uint32_t reserved = 0;
};
static_assert(sizeof(CacheChangesReplyBody) == 40);

enum ChangeTiers : std::uint32_t {
  kInDram = 1u << 0,
  kOnDisk = 1u << 1,
  kInHbm = 1u << 2,  ///< of blocks of requests alone
  kChangeTiers = 7u,
};

struct CacheChange {
  std::array<std::uint8_t, 32> digest{};
  std::array<std::uint8_t, 32> parent{};
  std::array<char, kLoraBytes> lora{};
  std::uint32_t tiers = 0;   ///< ChangeTiers; 0: it has gone
  std::uint32_t tokens = 0;  ///< none where it has gone
};
static_assert(sizeof(CacheChange) == 136);

/// What a command returns as a number. Cache open and space open: the new object's number. Lookup:
/// how many leading blocks there are. Store and load: how many are copied. Drop: how many there
/// were. A region put behind a space: its slabs. Share: bytes.
struct ValueReplyBody {
  std::uint64_t value = 0;
};
static_assert(sizeof(ValueReplyBody) == 8);

/// Where the client page has the state of a ticket, and how it reads. Open tickets of a session
/// have different words. `number` << 2 | state.
enum class TicketState : std::uint64_t { kPending = 0, kDone = 1, kFailed = 2 };
constexpr std::uint64_t kCacheTickets = 256;
constexpr std::uint64_t kMaxCacheTicket = (std::uint64_t{1} << 62) - 1;
constexpr std::uint64_t ticket_word(std::uint64_t number, TicketState state) {
  return number << 2 | static_cast<std::uint64_t>(state);
}

/// What the daemon counts for the calling session.
struct StatsReplyBody {
  std::uint64_t region_bytes = 0;
  std::uint64_t hbm_bytes = 0;   ///< blocks in HBM
  std::uint64_t dram_bytes = 0;  ///< blocks in DRAM
  std::uint64_t requests_waiting = 0;
  std::uint64_t requests_running = 0;
  std::uint64_t requests_rotary = 0;
  std::uint64_t rotations_out = 0;
  std::uint64_t rotations_in = 0;
};
static_assert(sizeof(StatsReplyBody) == 64);

// ---- the engine places --------------------------------------------------------------------------

/// The most requests of a schedule: they fit into a command frame with room to spare.
constexpr std::uint32_t kMaxScheduleRequests = 2048;
constexpr std::uint64_t kMaxScheduleBlocks = std::uint64_t{1} << 32;
constexpr std::uint32_t kMaxScheduleBlockTokens = 1u << 20;
constexpr std::uint64_t kMaxAgeNs = std::uint64_t{1} << 62;
/// As blocks_to_return of a running request: it cannot be parked.
constexpr std::uint32_t kRecomputed = ~std::uint32_t{0};

enum class ScheduleState : std::uint32_t {
  kWaiting = 1,  ///< holds no block, here or parked
  kParked = 2,   ///< was preempted, its blocks are kept for its return
  kRunning = 3,
};

/// One request of an engine that picks its blocks itself. Ages are as of sending.
struct ScheduleRequest {
  std::uint64_t request = 0;
  std::uint32_t state = 0;  ///< ScheduleState
  std::uint32_t prompt_tokens = 0;
  std::uint32_t computed_tokens = 0;   ///< whose KV it has; of a parked one, that are kept
  std::uint32_t generated_tokens = 0;  ///< of its answer
  std::uint32_t max_new_tokens = 0;
  std::uint32_t blocks = 0;            ///< come free when it leaves
  std::uint32_t blocks_to_return = 0;  ///< needed to come in; 0: by its tokens; or kRecomputed
  std::uint32_t slo_class = 0;         ///< slo_class_number(); 0: the domain's
  std::uint64_t age_ns = 0;
  std::uint64_t first_token_age_ns = 0;  ///< 0: none yet
  std::uint64_t last_token_age_ns = 0;
  std::uint64_t ttft_ns = 0;  ///< 0: the class's
  std::uint64_t tbt_ns = 0;
};
static_assert(sizeof(ScheduleRequest) == 80 && offsetof(ScheduleRequest, age_ns) == 40);

/// Followed by `count` ScheduleRequests.
struct ScheduleBody {
  std::uint64_t free_blocks = 0;
  std::uint64_t total_blocks = 0;
  std::uint64_t block_bytes = 0;   ///< of all layers; 0: not said
  std::uint64_t last_step_ns = 0;  ///< that an iteration took; 0: none since the last call
  std::uint32_t block_tokens = 0;
  std::uint32_t last_step_prefill_tokens = 0;
  std::uint32_t last_step_decodes = 0;
  std::uint32_t max_batched_tokens = 0;  ///< the engine's own bound of a step; 0: none
  std::uint32_t max_running = 0;         ///< the same of requests; 0: none
  std::uint32_t count = 0;
};
static_assert(sizeof(ScheduleBody) == 56);

/// Followed by `preempt_count` and `admit_count` request ids (u64).
struct ScheduleReplyBody {
  std::uint32_t prefill_tokens = 0;  ///< prompt tokens of the next step, at most; all ones: any
  std::uint32_t preempt_count = 0;
  std::uint32_t admit_count = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(ScheduleReplyBody) == 16);

/// The most requests whose layers are planned together.
constexpr std::uint32_t kMaxLayersRequests = 1024;
constexpr std::uint64_t kMaxLayersBlocks = std::uint64_t{1} << 40;
constexpr std::uint64_t kMaxLayersTokens = std::uint64_t{1} << 32;
/// The most layers of all requests of a question together.
constexpr std::uint64_t kMaxLayersInAll = 65536;

/// A request of an engine that streams layers and places its blocks itself.
struct LayersRequest {
  std::uint64_t request = 0;
  std::uint64_t tokens = 0;  ///< whose KV it has; it grows by one a step
};
static_assert(sizeof(LayersRequest) == 16);

/// Asks which layers of running requests stay in HBM. Followed by `count` LayersRequests. The
/// answer is a PlaceReply of the last plan that was made: a new one is made meanwhile, and nobody
/// waits for it.
struct LayersBody {
  std::uint64_t capacity_blocks = 0;  ///< blocks of one layer that HBM has room for
  std::uint64_t block_bytes = 0;      ///< of one layer
  std::uint64_t step_ns = 0;          ///< that a step computes, waits for layers left out
  std::uint32_t layers = 0;
  std::uint32_t block_tokens = 0;
  std::uint32_t count = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(LayersBody) == 40);

}  // namespace kvd::wire
