#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvd_client {

using Duration = std::chrono::nanoseconds;

/// The model whose KV the session keeps in blocks. layers = 0: regions only (level 1).
struct ModelShape {
  std::uint32_t layers = 0;
  std::uint32_t layers_per_block = 0;           ///< 0: the smallest that makes a block >= 256 KiB
  std::uint32_t block_tokens = 0;               ///< 0: 16
  std::uint64_t bytes_per_token_per_layer = 0;  ///< K and V together
};

/// The kind of memory that a kvd lends, and so how an engine reaches it.
enum class MemoryKind : std::uint32_t {
  kHost = 1,  ///< addresses are pointers
  kCuda = 2,  ///< addresses are device pointers of one GPU, for its kernels and copies
};
/// For Options::memory, which is a sum of these.
constexpr std::uint32_t kHostMemory = static_cast<std::uint32_t>(MemoryKind::kHost);
constexpr std::uint32_t kCudaMemory = static_cast<std::uint32_t>(MemoryKind::kCuda);
/// Alone: the engine maps no memory, whatever kind kvd lends. It may look up, drop and schedule. No
/// GPU is looked for, and what maps memory fails with InvalidArgument.
constexpr std::uint32_t kUnmappedMemory = 4;

/// What carries the session's commands.
enum class Transport : std::uint32_t {
  kZmq = 0,
  kRing = 1,  ///< shared memory: saves a few microseconds a command, for engines with short steps
};

/// One process of several that split a model's heads between them. kvd takes them as one engine:
/// every rank steps and gets the same run list; any one of them submits, finishes and aborts for
/// all. For each step the first rank's reports count. When one rank ends, all ranks' session ends.
struct Group {
  std::uint64_t id = 0;     ///< a number the ranks agreed on, not 0; free again once all have left
  std::uint32_t ranks = 0;  ///< 2 to 64; 0: no group
  std::uint32_t rank = 0;   ///< from 0
};

/// How to reach the daemon and who is asking.
struct Options {
  std::string endpoint;     ///< attach socket; empty: $KVD_ENDPOINT, else the default path
  std::string engine_name;  ///< shown in status and metrics, <= 31 bytes; empty: program name
  ModelShape shape;
  Duration attach_timeout = std::chrono::seconds(5);  ///< also for attaching again
  /// Kinds of memory the engine can use; a daemon that lends another kind refuses it.
  std::uint32_t memory = kHostMemory;
  Transport transport = Transport::kZmq;
  /// The engine calls wait_layer() before and layer_done() after each layer group of an iteration
  /// with a streamed request. Without it, or where one rank of a group is without it, kvd keeps all
  /// layers of what runs in HBM.
  bool streams_layers = false;
  Group group;  ///< the shape is then of one rank's share
  /// All that the bytes of a block depend on beside its tokens and the shape: weights by their
  /// content (no path, name or time), number format, layout, version. Requests of sessions whose
  /// models are not the same never find each other's blocks. Empty: Request::content is not passed
  /// on, and nothing is found.
  std::string model;
  /// Which of kvd's devices lends the memory, in the order of kvd's [[device]] tables. Ranks of a
  /// group may name the same device or different ones. InvalidArgument where kvd has none of this
  /// number.
  std::uint32_t device = 0;
};

/// What the daemon granted at attach.
struct SessionInfo {
  std::uint32_t engine = 0;  ///< the session's number in status and metrics
  std::uint64_t generation =
      0;             ///< another one after the client attached again; with boot_id: unique
  ModelShape shape;  ///< with the defaults filled in
  std::uint32_t layer_groups = 0;
  std::uint64_t block_bytes = 0;
  std::uint64_t slab_bytes = 0;
  MemoryKind memory = MemoryKind::kHost;
  int device = -1;                             ///< the GPU by this process's count; -1: host
  std::array<std::uint8_t, 16> device_uuid{};  ///< zeros: host
  std::array<std::uint8_t, 16> boot_id{};      ///< of the daemon; another one after its restart
};

/// A level-1 region: whole slabs mapped back to back, zeroed, pinned until freed.
struct Region {
  std::uint64_t id = 0;
  std::byte* address = nullptr;
  std::uint64_t bytes = 0;        ///< mapped, >= the bytes asked for
  std::uint64_t granularity = 0;  ///< alignment of address and size
  int device = -1;                ///< the GPU that `address` belongs to; -1: host memory
};

/// What requests with blocks in a growing region need: those with one goal that await their first
/// token, or those with one goal that have it.
struct Need {
  std::uint64_t bytes = 0;      ///< of wanted_bytes
  std::uint64_t least = 0;      ///< what the oldest of them needs to run, kept_bytes included
  std::uint64_t age_ns = 0;     ///< of the oldest
  std::uint64_t ttft_ns = 0;    ///< goal; 0: its class's
  std::uint32_t slo_class = 0;  ///< slo_class_number(); 0: that of the session's domain
  bool begun = false;           ///< they have their first tokens
};

struct Demand {
  std::uint64_t kept_bytes = 0;    ///< never handed back
  std::uint64_t least_bytes = 0;   ///< what its oldest request needs to run, `kept_bytes` included
  std::uint64_t wanted_bytes = 0;  ///< what all its requests would use
  std::uint64_t grain_bytes = 0;   ///< beyond what is kept it comes and goes by multiples of this
  std::uint64_t age_ns = 0;        ///< of its oldest request; 0: there is none
  /// By goal, at most 16; empty: nobody's goals count.
  std::vector<Need> needs{};
};

/// A region as something that outlives the client may hold it.
struct RegionView {
  std::byte* address = nullptr;
  std::uint64_t bytes = 0;
  int device = -1;  ///< as in Region
  std::shared_ptr<const void> mapping;
};

/// The digest of a block. It stands for its tokens and all before them.
using Digest = std::array<std::uint8_t, 32>;

/// What a request's tokens are. Requests whose leading tokens, adapter and salt are the same find
/// each other's blocks. What is not told is neither kept nor found.
struct Content {
  std::span<const std::uint32_t> tokens;  ///< ids of the whole prompt; empty: not told
  std::string_view adapter;               ///< the LoRA adapter's name; empty: none
  std::string_view salt;                  ///< keeps users of one engine apart; empty: none
};

/// A request to be scheduled by kvd. `id` is the engine's own number, unique within the session.
struct Request {
  std::uint64_t id = 0;
  std::uint64_t prompt_tokens = 0;
  std::uint64_t max_new_tokens = 0;
  Duration ttft_slo{0};  ///< 0: the domain's default
  Duration tbt_slo{0};
  Content content{};    ///< read by submit() alone
  Duration gap_slo{0};  ///< the longest wait for a token after the first; 0: the domain's default
};

/// The longest time that the user of a request may be without a token, after the first.
struct RequestGap {
  std::uint64_t id = 0;
  std::uint64_t gap_ns = 0;  ///< 0: its class's
};

/// What one request did in the iteration that just finished.
struct StepReport {
  std::uint64_t request = 0;
  std::uint64_t tokens = 0;  ///< tokens whose KV is complete in its blocks
  bool finished = false;
};

/// One request of the next iteration.
struct RunEntry {
  std::uint64_t request = 0;
  /// Tokens whose KV its blocks hold already; at its first run those that were found.
  std::uint64_t tokens_present = 0;
  std::uint64_t ticket = 0;    ///< wait() for it before touching the blocks; 0: none
  std::uint32_t tokens = 0;    ///< tokens to process: a prefill chunk, or 1
  std::uint32_t distance = 0;  ///< k: layers k, 2k, … are streamed; 0: all resident
  std::uint32_t row = 0;       ///< its row in the block table
  bool prefill = false;
  bool swapped_in = false;
  bool streamed = false;  ///< wait_layer() before each layer group of the iteration
};

enum class HoldReason : std::uint32_t {
  kNone = 0,
  kWaiting = 1,        ///< not admitted yet
  kNoMemory = 2,       ///< admitted, its blocks are not free yet
  kSwappedOut = 3,     ///< rotated out
  kPromised = 4,       ///< another engine's blocks are promised but not acknowledged yet
  kSlabNotMapped = 5,  ///< a slab is still on its way to this process
  kForced = 6,         ///< rotated out by rotate()
  kComplete = 7,       ///< has all the tokens it asked for: report it finished
  kPaused = 8,         ///< the batch meets its SLOs only without it; it keeps its place
  /// kvd has ended it: nobody could go on for want of memory. Its blocks
  /// are gone and its id is free; tell its user.
  kOutOfMemory = 9,
  /// kvd has ended it, as its engine is taken out of service (kvdctl drain): before it began, or at
  /// the deadline. Its blocks are gone and its id is free; another engine can take it.
  kDrained = 10,
};

struct HoldEntry {
  std::uint64_t request = 0;
  HoldReason reason = HoldReason::kNone;
};

struct StepResult {
  std::uint64_t iteration = 0;
  std::vector<RunEntry> run;
  std::vector<HoldEntry> hold;
};

enum class RotateDirection : std::uint32_t { kOut = 1, kIn = 2 };

struct Placement {
  struct Entry {
    std::uint64_t request = 0;
    std::uint64_t resident_blocks = 0;
    std::uint32_t distance = 0;
  };
  std::uint64_t budget_blocks = 0;
  std::vector<Entry> entries;
};

// ---- the engine places: it picks block ids itself and asks who is to run ----

/// Running requests whose layers may be streamed, and what streaming them would cost.
struct LayersInput {
  struct Request {
    std::uint64_t id = 0;
    std::uint64_t tokens = 0;  ///< whose KV it has; it grows by one a step
  };
  std::uint64_t capacity_blocks = 0;  ///< blocks of one layer that HBM has room for
  std::uint64_t block_bytes = 0;      ///< of one layer
  std::uint64_t step_ns = 0;          ///< that a step computes, waits for layers left out
  std::uint32_t layers = 0;
  std::uint32_t block_tokens = 0;
  std::span<const Request> requests;  ///< at most 1024
};

enum class ScheduleState : std::uint32_t {
  kWaiting = 1,  ///< holds no block and none is kept for it: a new prompt, or one to be recomputed
  kParked = 2,   ///< was preempted; its blocks are kept for its return
  kRunning = 3,
};

/// As blocks_to_return of a running request: it cannot be parked, so leaving would cost all that it
/// has computed. Nobody like it leaves for others; what it lacks to grow is the engine's to find.
constexpr std::uint32_t kRecomputed = 0xffffffffu;

/// One request. All ages are of the moment of the call, at least 1 ns where there is one.
struct ScheduleRequest {
  std::uint64_t id = 0;  ///< the engine's own number, not 0, unique among those of the call
  ScheduleState state = ScheduleState::kWaiting;
  std::uint32_t prompt_tokens = 0;
  std::uint32_t computed_tokens = 0;   ///< whose KV it has; kParked: whose KV is kept
  std::uint32_t generated_tokens = 0;  ///< of its answer
  std::uint32_t max_new_tokens = 0;
  std::uint32_t blocks = 0;  ///< kRunning: those that come free when it leaves
  /// kRunning: 0, or kRecomputed; the others: needed to come in, 0: by its tokens.
  std::uint32_t blocks_to_return = 0;
  std::uint32_t slo_class = 0;           ///< slo_class_number(); 0: that of the session's domain
  std::uint64_t age_ns = 0;              ///< since it arrived
  std::uint64_t first_token_age_ns = 0;  ///< 0: none yet
  std::uint64_t last_token_age_ns = 0;   ///< 0: none yet
  std::uint64_t ttft_ns = 0;             ///< goal; 0: its class's
  std::uint64_t tbt_ns = 0;              ///< goal; 0: its class's
};

/// The engine before its next step.
struct ScheduleInput {
  std::uint64_t free_blocks = 0;   ///< that requests may take, cached ones without owner included
  std::uint64_t total_blocks = 0;  ///< that requests can have at all
  std::uint64_t block_bytes = 0;   ///< of all layers; 0: parked blocks are not kvd's
  std::uint64_t last_step_ns = 0;  ///< that the last iteration took; 0: none since the last call
  std::uint32_t block_tokens = 0;
  std::uint32_t last_step_prefill_tokens = 0;
  std::uint32_t last_step_decodes = 0;
  std::uint32_t max_batched_tokens = 0;       ///< the engine's own bound of a step; 0: none
  std::uint32_t max_running = 0;              ///< the same of running requests; 0: none
  std::span<const ScheduleRequest> requests;  ///< at most kMostScheduled
};
constexpr std::size_t kMostScheduled = 2048;

/// What the next step shall do.
struct ScheduleResult {
  std::vector<std::uint64_t> preempt;  ///< running requests that leave, in this order
  /// Waiting and parked ones that come in, in this order; whoever is not named stays out.
  std::vector<std::uint64_t> admit;
  /// Prompt tokens of the step, all requests together, besides one token for each that decodes.
  std::uint32_t prefill_tokens = 0xffffffffu;  ///< all ones: any number
};

/// Piece of block b of a region: `bytes` from `offset` + b * `stride` on.
struct BlockPiece {
  std::uint64_t offset = 0;
  std::uint64_t stride = 0;
  std::uint64_t bytes = 0;
};

/// A cache of an engine that places its blocks itself. With block_bytes 0 and the model of Options:
/// the blocks of this session's requests, and of all that they find, to label and to follow alone.
struct CacheOptions {
  /// All that the bytes of a block depend on beside its digest, in any words: weights by their
  /// content (no path, name or time, under which there may be others tomorrow), number format,
  /// rank, the version and kernels that lay the bytes out, and how the pieces of a block follow
  /// each other. Whoever cannot tell puts a random number there. Blocks of caches with the same
  /// model, block_tokens and block_bytes are each other's, within the domain.
  std::string model;
  std::uint32_t block_tokens = 0;
  std::uint64_t block_bytes = 0;   ///< of all pieces together, at most a slab; 0: see above
  std::uint64_t region_id = 0;     ///< where the blocks are; 0: to look up and drop alone
  std::uint64_t blocks = 0;        ///< how many there are in the region
  std::vector<BlockPiece> pieces;  ///< of a block, in the order in which they are kept
  /// Lookups fail with WouldBlock, and are to be asked again soon, while kvd opens the disk's files
  /// or asks remote servers for what it lacks: for a tenth of the time that computing takes, and at
  /// most 0.2 s.
  bool await_remote = false;
};

/// What routers are told of consecutive blocks of a cache.
struct BlockLabels {
  std::span<const Digest> digests;        ///< at most 1024
  std::span<const std::uint32_t> tokens;  ///< of all of them, block_tokens each
  Digest parent{};                        ///< the block before the first; zeros: there is none
  std::string lora{};                     ///< adapter; at most 63 printable ASCII characters
};

/// How much of the changes of a cache somebody has seen. As it is made: nothing.
struct CacheCursor {
  std::uint64_t life = 0;
  std::uint64_t start = 0;
  std::uint64_t position = 0;
};

/// A labelled block that came or went, as it is now.
struct CacheChange {
  Digest digest{};
  Digest parent{};  ///< zeros: it is the first
  std::string lora{};
  bool in_hbm = false;  ///< of a block of requests
  bool in_dram = false;
  bool on_disk = false;
  std::vector<std::uint32_t> tokens{};  ///< empty where it has gone
};
struct CacheChanges {
  CacheCursor next;   ///< to ask with the next time
  bool over = false;  ///< it starts over: what was told before these is void
  bool more = false;  ///< there are more: ask again at once
  std::vector<CacheChange> all;
};

/// What an engine says of cached blocks (Caches::hint).
enum class Hint : std::uint32_t {
  kRetain = 1,  ///< they leave DRAM after all others of the domain, for a time; 0: not any more
  kPin = 2,     ///< the same until kUnpin, or until no engine of the domain has been here for long
  kUnpin = 3,   ///< they are like any other again
  kDemote =
      4,  ///< they leave DRAM before all others, and are offered to the disk; pinned ones stay
  kPrefetch = 5,  ///< they come to DRAM from below it, and are retained there for a time
};

/// The state of a copy between a region and the cache.
enum class TicketState : std::uint8_t {
  kPending = 0,
  kDone = 1,
  kFailed = 2,  ///< nothing was stored, or what was to be loaded is not there; also: not known
};

/// What the daemon counts for this session.
struct Stats {
  std::uint64_t region_bytes = 0;
  std::uint64_t hbm_bytes = 0;
  std::uint64_t dram_bytes = 0;
  std::uint64_t requests_waiting = 0;
  std::uint64_t requests_running = 0;
  std::uint64_t requests_rotary = 0;
  std::uint64_t rotations_out = 0;
  std::uint64_t rotations_in = 0;
};

}  // namespace kvd_client
