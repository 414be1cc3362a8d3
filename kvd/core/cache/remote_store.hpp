#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "ipc/vocabulary/digest.hpp"
#include "kvd/core/cache/disk_classes.hpp"
#include "kvd/core/cache/remote_names.hpp"
#include "kvd/core/ledger/context.hpp"
#include "kvd/store/cache/all_rows.hpp"
#include "kvd/store/index/disk_admission.hpp"
#include "kvd/store/store.hpp"

namespace kvd::core {

/// What the remote store is asked, and what is written there. What it has is not known but asked
/// for: a lookup says what is known by then, and whoever asks again gets the answer. Rows wait for
/// their write in a queue of their own, so that the disk does not wait for the network.
///
/// Source: kvd/DESIGN.md "Blocks on other machines". Owner: control thread. Errors: none. Cost:
/// O(blocks asked for), each a name to be computed.
class RemoteStore {
 public:
  RemoteStore(Context& context, store::Store& store, DiskClasses& classes)
      : context_(context),
        store_(store),
        classes_(classes),
        budget_(store::WriteBudget::each_second(context.config.remote.bytes_per_s, TimePoint{0})) {}

  [[nodiscard]] bool on() const { return static_cast<bool>(context_.config.remote.name); }
  /// The block's name there, where it is known to be there. Precondition: on(), and
  /// DiskClasses::find() of the space.
  [[nodiscard]] std::optional<Digest> there(const store::KeySpace& space,
                                            const Digest& digest) const;
  /// Has the store asked for what is not known of the chain; the answer comes later. Whether that
  /// about the first block is likely to come within `seconds` of its question. Precondition: as of
  /// there().
  [[nodiscard]] bool awaits(const store::KeySpace& space, std::span<const Digest> chain,
                            double seconds);
  [[nodiscard]] bool is_asked() const { return !asking_.empty(); }
  /// A read there has shown whether the block is there.
  void learn(const Digest& name, bool there) { names_.answer(name, there, context_.now); }

  /// From now on every cached row is written, without regard to remote.write and remote.budget: the
  /// node is about to end. Precondition: on().
  void write_all() { all_.emplace(store_.cache); }
  void write_by_rule();
  [[nodiscard]] bool writes_all() const { return all_.has_value(); }
  /// Has the cache offer the next part of what write_all() wants.
  void offer_all();
  /// Rows that write_all() has yet to write, at most.
  [[nodiscard]] std::size_t left() const;
  /// write_all() has written what DRAM had, so other rows may push it out.
  [[nodiscard]] bool wrote_all() const {
    return all_ && all_->over() && waiting_.empty() && writes_.empty();
  }
  /// Whether offered rows find room to wait. What comes by the rule pushes out what waits longest.
  [[nodiscard]] bool takes_more() const;

  /// The row is written in its turn, where the rule admits it.
  void offer(const store::ForDisk& row);
  /// Orders writes of offered rows, a few at a time, as far as the budget allows.
  void write_ahead();

  // ---- what the shell says ----
  void on_found(const RemoteFound& found);
  /// A server went off or came back.
  void on_changed() { names_.clear(), answer_s_ = 0; }
  /// False: it is no write of these.
  [[nodiscard]] bool on_finished(const DiskFinished& finished);

 private:
  struct Write {
    DiskId disk;
    Digest name;
    Bytes bytes;
    store::RowId row;
  };
  struct Question {
    std::vector<Digest> names;
    TimePoint since{0};
  };
  void ask(const store::KeySpace& space, std::span<const Digest> chain);
  /// How long an answer takes now, in seconds.
  [[nodiscard]] double answer_s() const;
  /// True: the failed write of write_all() is made again.
  [[nodiscard]] bool again(const Write& failed);
  /// False: nothing more goes there now.
  [[nodiscard]] bool write(const store::ForDisk& row);

  Context& context_;
  store::Store& store_;
  DiskClasses& classes_;
  RemoteNames names_;
  store::WriteBudget budget_;
  std::map<Ticket, Question> asking_;  ///< the oldest first
  double answer_s_ = 0;                ///< of the last answers, smoothed
  std::map<Ticket, Write> writes_;
  std::optional<store::AllRows> all_;  ///< of write_all()
  /// In write_all(): since when writes fail that are made again, and which rows they are of. No
  /// write is ordered before no_writes_before_.
  std::optional<TimePoint> failing_since_;
  std::set<store::RowId> tried_again_;
  TimePoint no_writes_before_{0};
  std::deque<store::RowId> waiting_;  ///< for their write; some are not, or not any more
};

}  // namespace kvd::core
