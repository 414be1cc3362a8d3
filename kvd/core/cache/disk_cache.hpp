#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "ipc/vocabulary/digest.hpp"
#include "ipc/vocabulary/ids.hpp"
#include "kvd/core/cache/disk_classes.hpp"
#include "kvd/core/cache/remote_store.hpp"
#include "kvd/core/ledger/context.hpp"
#include "kvd/core/ledger/knowledge.hpp"
#include "kvd/core/ledger/requests.hpp"
#include "kvd/store/index/disk_admission.hpp"
#include "kvd/store/store.hpp"
#include "planner/policy/load.hpp"

namespace kvd::core {

/// Cached blocks on disk. They are written from DRAM in the background once they have been asked
/// for again, and brought back to DRAM for requests that need what only the disk has.
///
/// A request that needs such blocks waits for them. It holds no memory meanwhile and keeps none
/// from others. The wait ends when the blocks have come, when the read fails, or when it is late.
/// A read is late after twice the time that reads have shown and a tenth of the time that computing
/// takes, and at the latest when computing would have ended; under load.policy `always` it never
/// is. The request then goes on with what DRAM has and computes the rest, and what still comes is
/// cached. Where reads have been slower than computing, kvd tries one now and then, and nobody
/// waits for it. A long prompt is read one part at a time, as long as every block of a part comes.
/// A block that could not be read is a miss and is forgotten, whatever the reason. While the files
/// are still being opened a request waits a little, too: the first requests after a restart should
/// find what there is.
///
/// The blocks of engines that place their own blocks are written by the same rule and read when
/// they are loaded; engine_caches.hpp holds the load open meanwhile. Parked blocks are not written.
///
/// The remote store is a third place, behind the disk, with the same rules for who waits, what is
/// worth loading and what is written. What it has is not known but asked for: a lookup says what is
/// known by then, and whoever asks again gets the answer. A request waits for it for a tenth of the
/// time that computing takes, and not where the last answers took longer. Where a
/// server is off, all of this is a miss at once.
///
/// Source: kvd/DESIGN.md "Blocks on disk", "Blocks on other machines"; second touch: vLLM's
/// store_threshold.
///
/// Owner: control thread. Errors: none. Cost: O(blocks asked for), each a name to be computed.
class DiskCache {
 public:
  DiskCache(Context& context, store::Store& store, Requests& requests, const Knowledge& knowledge);

  /// Consecutive blocks of a prompt, and what they are worth to the request that asks for them.
  struct Asked {
    store::KeySpace space;
    store::Taker taker;
    std::span<const Digest> chain;  ///< from the first block of the prompt on
    std::uint32_t groups = 1;       ///< layer groups of a block
    std::uint32_t block_tokens = 1;
    store::SecondsPerByte saved;
    planner::Seconds prefill_token{0};  ///< time to compute a token
    planner::Seconds ahead{0};          ///< time for which the engine computes other prompts first
    bool apart = false;                 ///< each block stands for itself (store::PlacedRows)
  };

  /// As DiskClasses::meet().
  void meet(const Session& session, ClassId model_class, const DiskShape& shape) {
    classes_.meet(session, model_class, shape);
  }
  /// Memory has the first `known` of the blocks that the request asks for. True: more come from
  /// disk, and the request should wait.
  [[nodiscard]] bool brings(Request& request, const store::KeySpace& space, std::size_t asked,
                            std::uint32_t known);

  // ---- for blocks that stand for themselves ----
  /// Blocks, and how many of them are in the remote store.
  struct Count {
    std::size_t blocks = 0, remote = 0;
  };
  // How many leading blocks of the chain are below DRAM, or on their way from there.
  [[nodiscard]] Count leading(const store::KeySpace& space, std::span<const Digest> chain);
  /// Whether reading this many of its blocks pays.
  [[nodiscard]] bool pays(const Asked& asked, Count count);
  /// Whether to wait now for the blocks behind the `known` leading ones: while files are opened
  /// that may hold them, and while the remote store, which this asks for them, has not answered.
  [[nodiscard]] bool awaits_answer(const Asked& asked, std::size_t known);
  struct Coming {
    std::size_t blocks = 0;        ///< leading blocks of the chain
    std::set<std::uint64_t> runs;  ///< the runs that bring them
    ErrorCode code = ErrorCode::kOk;
  };
  /// Brings leading blocks of the chain to DRAM, as many as there is room for. Errors: NotFound
  /// where the first is not on disk; WouldBlock while others read as much as may be read at once,
  /// so ask again when their runs end; OutOfMemory where DRAM is full of blocks that may not make
  /// way.
  [[nodiscard]] Coming bring(const Asked& asked);
  /// The runs that have ended since the last call, well or not.
  [[nodiscard]] std::vector<std::uint64_t> take_ended() { return std::exchange(ended_, {}); }
  /// The block is not looked for on disk any more, unless a later daemon finds it there.
  void forget(const store::KeySpace& space, const Digest& digest);
  /// Whether anything is being read.
  friend bool reads(const DiskCache& disk) { return !disk.reads_.empty(); }

  /// At the end of each event: goes on with what earlier events left. True: a request that waited
  /// can go on.
  [[nodiscard]] bool go_on();
  /// Orders writes of the offered blocks, a few at a time.
  void write_ahead();
  /// Nothing that is on disk now is found again.
  /// The remote store belongs to others, too, and keeps what it has.
  void clear();

  // ---- what the shell says ----
  DiskClasses& classes() { return classes_; }
  RemoteStore& remote() { return remote_; }
  void on_opened(const DiskOpened& opened) { classes_.on_opened(opened); }
  void on_resized(const DiskResized& resized);
  /// True: a request that waited can go on.
  [[nodiscard]] bool on_finished(const DiskFinished& finished);
  /// Time has passed. True as above.
  [[nodiscard]] bool expire();

  // ---- reading ----
  /// DRAM slots that reads fill.
  [[nodiscard]] std::size_t slots() const;
  [[nodiscard]] Bytes bytes() const;
  [[nodiscard]] DiskRates rates() const;
  /// Each class that has files or wants some.
  [[nodiscard]] std::vector<DiskModel> models() const;
  /// The blocks that the files hold, for the next daemon.
  [[nodiscard]] std::vector<DiskFound::Block> blocks(DiskId disk) const {
    return classes_.blocks(disk);
  }

 private:
  using Disk = DiskClasses::Disk;
  /// Where a block is below DRAM.
  struct Place {
    bool remote = false;
    Digest name;  ///< its name there
    std::uint32_t slot = 0;
    std::uint64_t generation = 0;
  };
  struct Row {
    Digest digest;
    Place place;
    std::vector<SlotId> dram{};
    bool here = false;
    bool dropped = false;  ///< nobody may find it any more
  };
  /// The slots of a failed read: the device may still write there.
  struct Held {
    DiskId disk;
    std::vector<SlotId> slots;
  };
  /// Consecutive rows on their way to DRAM, all from one place.
  struct Run {
    DiskId disk;
    bool remote = false;
    store::FromDisk wanted;  ///< all but its rows
    std::vector<Row> rows;
    std::size_t under_way = 0;
    TimePoint since{0};
    TimePoint waits_until{0};  ///< requests go on without it then
    TimePoint deadline{0};     ///< it is given up
    Bytes queued{0};           ///< bytes that were queued for reading before these
    bool apart = false;        ///< each row is of use without those before it
    bool slow = false;         ///< some row did not come in time
    bool late = false;         ///< nobody waits for it any more
    bool dropped = false;      ///< the cache was emptied meanwhile
  };
  struct Read {
    std::uint64_t run = 0;
    std::size_t row = 0;
  };
  struct Write {
    DiskId disk;
    std::uint32_t slot = 0;
    Bytes bytes;
    bool told = false;  ///< it has failed, and the device may still touch the memory
  };

  /// How long whoever has `tokens` to compute waits until it is known what the files hold.
  [[nodiscard]] Nanoseconds opening_patience(planner::Seconds prefill_token,
                                             std::int64_t tokens) const;
  [[nodiscard]] Asked asked_by(const Request& request, const store::KeySpace& space) const;
  [[nodiscard]] std::optional<Place> where(const Disk& disk, const store::KeySpace& space,
                                           const Digest& digest) const;
  /// The consecutive rows of the chain from block `first` up to `end` that nobody reads yet, all
  /// from one place.
  [[nodiscard]] std::vector<Row> found(const Disk& disk, const Asked& asked, std::size_t first,
                                       std::size_t end, std::size_t most) const;
  /// Reads that may still be ordered besides those under way.
  [[nodiscard]] std::size_t reads_left() const;
  /// DRAM that reads may still fill.
  [[nodiscard]] Bytes dram_left(const Disk& disk) const;
  /// Reads the rows, which stand behind the first `known` of the chain. Returns the run that brings
  /// them. `is_held`: an engine's load is held open until it has ended.
  std::uint64_t read(const Asked& asked, std::size_t known, std::vector<Row> rows, bool is_held);
  /// Gives slots to as many of the rows as DRAM has room for, and drops the others.
  void take_dram(const Disk& disk, const Asked& asked, std::vector<Row>& rows);
  [[nodiscard]] planner::LoadCosts costs(const Disk& disk, const Asked& asked, Count count) const;
  std::uint64_t start(Run run);
  void write(const store::ForDisk& row);
  /// Offers again the rows that waited for the files of the class.
  void offer_again(DiskId disk);
  [[nodiscard]] bool read_ended(const Read& read, const DiskFinished& finished);
  void write_ended(Write& write, const DiskFinished& finished);
  void end(std::uint64_t id);
  /// Caches the rows that have come. Returns the slots of those that were known by then.
  [[nodiscard]] std::vector<SlotId> adopt(Run& run);
  static void measure(Disk& disk, const Run& run, double seconds);

  Context& context_;
  store::Store& store_;
  Requests& requests_;
  const Knowledge& knowledge_;
  DiskClasses classes_;
  RemoteStore remote_;
  store::WriteBudget budget_;
  std::map<std::uint64_t, Run> runs_;
  std::map<std::pair<DiskId, store::Key>, std::uint64_t> coming_;  ///< runs that bring the rows
  std::map<Ticket, Read> reads_;
  std::size_t remote_reads_ = 0;
  std::map<Ticket, Write> writes_;
  std::map<Ticket, Held> held_;
  /// Rows to write once the files are open.
  std::map<DiskId, std::map<DomainId, std::set<store::RowId>>> later_;
  std::uint64_t last_run_ = 0;
  std::vector<std::uint64_t> ended_;  ///< not taken yet
};

}  // namespace kvd::core
