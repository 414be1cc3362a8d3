#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ipc/vocabulary/digest.hpp"
#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/store/cache/kept_rows.hpp"
#include "kvd/store/index/labels.hpp"
#include "kvd/store/memory/orders.hpp"
#include "planner/policy/placement/placement.hpp"

/// What the Controller wants its shell to do.
namespace kvd::core {

/// The shape that fixes the slot size of a class, with all defaults filled in.
struct ModelClass {
  std::uint32_t layers = 0;
  std::uint32_t layers_per_block = 1;
  std::uint32_t block_tokens = 16;
  Bytes bytes_per_token_per_layer;  ///< of one rank
  /// Ranks of a tensor-parallel group; each holds all layers of its heads.
  std::uint32_t ranks = 1;

  /// The layer groups of one rank.
  [[nodiscard]] std::uint32_t rank_groups() const {
    return (layers + layers_per_block - 1) / layers_per_block;
  }
  /// The layer groups of all ranks. Rank r has the groups from r * rank_groups() on.
  [[nodiscard]] std::uint32_t groups() const { return ranks * rank_groups(); }
  [[nodiscard]] Bytes slot_bytes() const {
    return bytes_per_token_per_layer * std::int64_t{layers_per_block} * block_tokens;
  }
  friend auto operator<=>(const ModelClass&, const ModelClass&) = default;
};

/// Where a command came from; the shell matches the reply to its peer by it.
using ReplyTo = Id<struct ReplyToTag, std::uint64_t>;

struct RunEntry {
  RequestId request;
  Tokens present;
  Tokens tokens;
  Ticket ticket;
  bool prefill = false;
  bool swapped_in = false;
  /// Some of its blocks are staged while the iteration runs. Before the engine touches layer group
  /// l it waits until the layers' fence has reached layer_mark(iteration, l + 1).
  bool streamed = false;
  std::uint32_t distance = 0;  ///< k of the plan in force: groups k, 2k, … stream; 0: none
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
  kPaused = 8,
  kOutOfMemory = 9,  ///< the request has ended
  kDrained = 10,     ///< the request has ended
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
  std::uint32_t blocks = 0;  ///< new blocks per layer group; the next step's table shows them
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
/// Tells an engine that picks its blocks itself what to do in its next step.
struct ScheduleReply {
  std::vector<RequestId> preempt;  ///< in this order
  std::vector<RequestId> admit;    ///< in this order; other requests that do not run stay out
  std::uint32_t prefill_tokens = UINT32_MAX;  ///< the most prompt tokens
};
/// Answers a command about a cache or a space with its number, a count of blocks, or bytes.
struct ValueReply {
  std::uint64_t value = 0;
};
struct Done {};

struct Reply {
  EngineId engine;
  ReplyTo reply_to;
  std::variant<Done, StepReply, RegionReply, BlocksReply, PlaceReply, StatsReply, ValueReply,
               ScheduleReply, store::Labels::Changes, Error>
      body;
};

/// One row of a block table; slots in the order [group][block].
struct TableRow {
  RequestId request;
  Tokens tokens;
  std::uint32_t blocks = 0;
  std::uint32_t groups = 0;
  store::SharedList<SlotId> slots;  ///< shared by all tables in which the slots are the same
};
/// Has to be published before the reply that names the version.
struct PublishTable {
  EngineId engine;
  PlanVersion version;
  std::vector<TableRow> rows;
  bool idle = false;  ///< the engine runs nothing, so it reads no older version
};

// What the Controller wants done with memory: kvd/store says what each means.
using store::AskUnmap;
using store::BlockLayout;
using store::CopyRanges;
using store::CopySlots;
using store::DropCopy;
using store::EndStream;
using store::ForgetKept;
using store::MoveSlots;
using store::RenewSlab;
using store::Scrub;
using store::SendSlab;
using store::StreamLayers;
/// A class of blocks on disk; 0: none.
using DiskId = Id<struct DiskIdTag, std::uint32_t>;
/// What all blocks of such a class have in common.
struct DiskShape {
  Fingerprint fingerprint;  ///< as the engine says
  std::uint32_t layers = 0;
  std::uint32_t layers_per_block = 0;
  std::uint32_t block_tokens = 0;
  std::uint32_t ranks = 0;
  std::uint32_t groups = 0;  ///< of all ranks
  Bytes slot_bytes;
  friend auto operator<=>(const DiskShape&, const DiskShape&) = default;
};
/// Returns the shape that blocks of requests have on disk.
inline DiskShape shape_on_disk(const ModelClass& shape, const Fingerprint& fingerprint) {
  return {fingerprint, shape.layers,   shape.layers_per_block, shape.block_tokens,
          shape.ranks, shape.groups(), shape.slot_bytes()};
}
/// Makes files ready for the class; reported back as DiskOpened, and what they hold as DiskFound.
struct OpenDisk {
  DiskId disk;
  DiskShape shape;
  bool make = false;  ///< makes files where there are none; else opens only those that exist
  std::string model;  ///< the model's name, for people who look at the files
};
/// Resizes the files to so many bytes; reported back as DiskResized. Nobody uses slots beyond them.
struct ResizeDisk {
  DiskId disk;
  Bytes bytes;
};
/// Writes the index and closes the files; reported back as DiskClosed. Nothing of them is being
/// read or written.
struct CloseDisk {
  DiskId disk;
};
/// A block of all layer groups in DRAM, and its slot in the files. The domain and the name are
/// those that are used outside this node.
struct DiskBlock {
  DiskId disk;
  std::uint32_t slot = 0;
  Digest domain, name;
  Bytes slot_bytes;
  std::vector<SlotId> dram;  ///< by layer group
  Nanoseconds patience{0};   ///< the longest wait for the answer
};
/// Writes the block; reported back as DiskFinished with the ticket.
struct WriteDisk {
  Ticket ticket;
  DiskBlock block;
};
/// Reads the block into the DRAM slots, which nothing else uses, and compares it with what it must
/// be; reported back as DiskFinished with the ticket.
struct ReadDisk {
  Ticket ticket;
  DiskBlock block;
  std::uint64_t generation = 0;  ///< generation of the write that it comes from
};
/// Asks which of the blocks the remote store has; reported back as RemoteFound.
struct FindRemote {
  Ticket ticket;
  DiskShape shape;
  std::vector<Digest> names;
};
/// Like ReadDisk and WriteDisk, for the remote store, where blocks have no slots.
struct ReadRemote {
  Ticket ticket;
  DiskShape shape;
  DiskBlock block;
};
struct WriteRemote {
  Ticket ticket;
  DiskShape shape;
  DiskBlock block;
};
/// A row as the next daemon is to find it; its class is given by shape.
struct KeptBlocks {
  ModelClass shape;
  store::KeptRow row;
};
/// Writes down what the slots hold, for the next daemon; reported back as RowsKept. The slots keep
/// their bytes until then.
struct KeepRows {
  Ticket ticket;
  std::vector<KeptBlocks> rows;
};
/// Decides which layers stay; comes back as PlanReady with the same number and `query`. An engine
/// has at most one of each kind open.
struct SolvePlacement {
  EngineId engine;
  std::uint64_t number = 0;
  bool query = false;  ///< it answers a `place` command and changes nothing
  std::string policy;
  planner::PlacementSnapshot snapshot;
  planner::PlacementConfig config;
};
/// Tells the engine in its page how far a copy of one of its caches is.
struct SetTicket {
  EngineId engine;
  std::uint64_t number = 0;  ///< chosen by the engine
  enum class State : std::uint8_t { kPending, kDone, kFailed } state = State::kPending;
};
/// How a CopySlots, CopyRanges, MoveSlots, StreamLayers or Scrub ended; an event that the shell
/// feeds back.
struct CopyFinished {
  Ticket ticket;
  bool ok = true;
  Bytes bytes;
  Nanoseconds busy{0};
  bool dropped = false;  ///< it was ended by order (DropCopy): not ok, but nothing is wrong
};
/// Ends the engine's process, with every rank of it: it is silent, and others wait for what it
/// holds.
struct Evict {
  EngineId engine;
};
/// Something an operator wants to read; goes to the log and the event list.
struct Note {
  enum class Level : std::uint8_t { kInfo, kWarning, kError } level = Level::kInfo;
  EngineId engine;
  std::string text;
};

using Effect =
    std::variant<Reply, PublishTable, CopySlots, CopyRanges, DropCopy, SetTicket, MoveSlots,
                 StreamLayers, EndStream, SolvePlacement, Scrub, RenewSlab, SendSlab, AskUnmap,
                 OpenDisk, ResizeDisk, CloseDisk, WriteDisk, ReadDisk, FindRemote, ReadRemote,
                 WriteRemote, KeepRows, ForgetKept, Evict, Note>;

}  // namespace kvd::core
