#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "planner/policy/placement.hpp"

/// What the Controller wants its shell to do.
namespace kvd::core {

/// Where a command came from; the shell matches the reply to its peer by it.
using ReplyTo = Id<struct ReplyToTag, std::uint64_t>;

struct RunEntry {
  RequestId request;
  Tokens present;
  Tokens tokens;
  Ticket ticket;
  bool prefill = false;
  bool swapped_in = false;
  /// Some of its blocks are staged while the iteration runs: before it touches layer group l, the
  /// engine waits for the layers' fence to reach layer_mark(iteration, l + 1).
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
  kOutOfMemory = 9,  ///< the request is no more
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
  std::uint32_t blocks = 0;  ///< new ones per layer group; the next step's table shows them
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
  bool idle = false;  ///< the engine runs nothing, so it reads no older version
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
  bool background = false;  ///< nobody waits for it: after everything else of its direction
};
/// Bring streamed blocks into staging slots, layer group by layer group, while an iteration runs.
/// A fetch may start once the engine's progress word has reached `after`, because until then the
/// iteration before, or an earlier group of this one, reads the same slots. Earliest group first,
/// ahead of every other copy into HBM. Once all fetches of the groups 0..l are complete, the
/// session's layers' fence becomes layer_mark(iteration, l + 1); after the last one
/// layer_mark(iteration, groups). One CopyFinished with the ticket ends the stream; not ok: some
/// fetch failed for good, and the session cannot go on.
/// Source: OrbitFlow sec. 4.1; kvd/DESIGN.md "Blocks that come and go".
struct StreamLayers {
  struct Fetch {
    std::uint32_t group = 0;  ///< 0-based
    std::uint64_t after = 0;  ///< layer_mark
    std::vector<CopySlots::Pair> pairs;
  };
  Ticket ticket;
  EngineId engine;
  std::uint64_t iteration = 0;
  std::uint32_t groups = 0;  ///< of the model
  Bytes slot_bytes;
  std::vector<Fetch> fetches;  ///< by ascending group
};
/// Start no further fetch of the stream: its iteration is over, or its engine. CopyFinished follows
/// once nothing of it is in flight.
struct EndStream {
  Ticket ticket;
};
/// Decide which layers stay; comes back as PlanReady with the same number and `query`. An engine
/// has at most one of each kind open.
struct SolvePlacement {
  EngineId engine;
  std::uint64_t number = 0;
  bool query = false;  ///< for a `place` command: the answer changes nothing
  std::string policy;
  planner::PlacementSnapshot snapshot;
  planner::PlacementConfig config;
};
/// Zero a whole slab or single slots of `tier`; reported back as CopyFinished with the ticket.
struct Scrub {
  Ticket ticket;
  Tier tier = Tier::kHbm;
  std::vector<SlabIndex> slabs;
  std::vector<SlotId> slots;
  Bytes slot_bytes;
};
/// Put new, zeroed memory in the place of an HBM slab's, since engines of another domain may still
/// map what is there; reported back as SlabRenewed. Nothing of the slab is in use until then.
struct RenewSlab {
  SlabIndex slab;
};
/// How a CopySlots, StreamLayers or Scrub ended; an event the shell feeds back.
struct CopyFinished {
  Ticket ticket;
  bool ok = true;
  Bytes bytes;
  Nanoseconds busy{0};
};
/// Send the slab's fd. Region none: it backs slots; else it is `position` of `count` of the
/// region.
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
/// End the engine's process, every rank of it: it is silent, and others wait for what it holds.
struct Evict {
  EngineId engine;
};
/// Something an operator wants to read; goes to the log and the event list.
struct Note {
  enum class Level : std::uint8_t { kInfo, kWarning, kError } level = Level::kInfo;
  EngineId engine;
  std::string text;
};

using Effect = std::variant<Reply, PublishTable, CopySlots, StreamLayers, EndStream, SolvePlacement,
                            Scrub, RenewSlab, SendSlab, AskUnmap, Evict, Note>;

}  // namespace kvd::core
