#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ipc/vocabulary/digest.hpp"
#include "ipc/vocabulary/ids.hpp"
#include "kvd/core/ledger/context.hpp"
#include "kvd/core/ledger/session.hpp"
#include "kvd/store/index/disk_directory.hpp"
#include "kvd/store/index/disk_shares.hpp"
#include "kvd/store/memory/key.hpp"
#include "planner/model/tier_rates.hpp"
#include "planner/policy/load.hpp"

namespace kvd::core {

/// Which files have the blocks of which class, what these hold, and what blocks are called in them.
///
/// Each class of blocks (fingerprint and shape) has files of its own. Those that are there are
/// opened when an engine tells of its content; where there are none they are made for the first
/// block that is to be written, small, and grow with what is written. All together have a bound
/// (disk.size), and only so many are open. Who wants more than is left has it from others by
/// store::disk_gives_way; else it is refused, which is told, and tried again later, as is whatever
/// could not be opened.
///
/// Source: kvd/DESIGN.md "Blocks on disk".
///
/// Owner: control thread. Errors: none. Cost: O(log classes), and names that are computed;
/// O(classes) where one wants more than there is.
class DiskClasses {
 public:
  enum class State : std::uint8_t {
    kNone,     ///< no files are open
    kOpening,  ///< asked for
    kOpen,
    kEnding,   ///< what is read or written ends first
    kClosing,  ///< asked for
  };
  struct Disk {
    DiskId id;
    DiskShape shape;
    std::string model;  ///< what its blocks are of; else what an engine of it is called
    DomainId domain;    ///< that engine's
    ClassId met_in{};   ///< the class of blocks that it was told of last
    State state = State::kNone;
    TimePoint since{0};                               ///< its files were asked for first
    bool opening = true;                              ///< what it holds may yet be told
    std::optional<store::DiskDirectory> directory{};  ///< none: it is not open
    bool ready = false;                               ///< all that it held is known
    planner::TierRates rates{};                       ///< of reads
    planner::LoadMemory memory{};
    struct Files {
      Bytes bytes, grain;          ///< they grow and give way by a grain
      bool resizing = false;       ///< asked for, or about to be
      bool growing = false;        ///< resizing, to more
      std::optional<Bytes> cut{};  ///< they are to be no more, once nobody uses what is beyond
    } files{};
    std::set<DomainId> domains{};  ///< that keep blocks there
    std::set<EngineId> engines{};  ///< that told of it; some may have gone
    TimePoint used{0};
    bool wanted = false;   ///< a block is to be written: files are to be made
    bool refused = false;  ///< it does not get what it wants, which was told
    Nanoseconds pause{0};  ///< between two tries
    TimePoint again{0};    ///< the next
    /// Blocks can be written; not while a slot is about to be free that now another would lose.
    [[nodiscard]] bool takes_writes() const {
      return directory && ready && !(files.growing && directory->free() == 0);
    }
    [[nodiscard]] Bytes row_bytes() const { return shape.slot_bytes * shape.groups; }
  };

  explicit DiskClasses(Context& context) : context_(context) {}

  /// Blocks are kept on disk, now or later.
  [[nodiscard]] bool on() const {
    return static_cast<bool>(context_.config.disk.name) || context_.config.disk.awaited;
  }
  /// The session's engine has told of content of this shape, in blocks of the class.
  void meet(const Session& session, ClassId model_class, const DiskShape& shape);
  /// Null: it is not known, its domain has not met it, or its files are being closed.
  [[nodiscard]] Disk* find(const store::KeySpace& space);
  [[nodiscard]] Disk& at(DiskId id) { return disks_.at(id); }
  [[nodiscard]] std::map<DiskId, Disk>& all() { return disks_; }
  [[nodiscard]] const std::map<DiskId, Disk>& all() const { return disks_; }
  /// What a block is called outside of this node. Precondition: find() of the space.
  [[nodiscard]] Digest name(const store::KeySpace& space, const Digest& digest) const;
  /// What the domain is called in the files. Precondition: find() of a space of it.
  [[nodiscard]] const Digest& label(DomainId domain) const { return domains_.at(domain).label; }

  /// A block of the domain is to be written: there are to be files, and room in them.
  void want(Disk& disk, DomainId domain);
  /// Tries again what is due, and goes on with what waited for the end of reads and writes. `busy`:
  /// some of the class are under way. `gone`: the engine is not attached any more.
  template <class Busy, class Gone>
  void go_on(Busy busy, Gone gone) {
    for (auto& [id, disk] : disks_) {
      std::erase_if(disk.engines, gone);
      if (disk.state == State::kEnding && !busy(id)) close(disk);
      if (disk.files.cut) cut(disk);
      if (disk.state == State::kNone && disk.again != TimePoint{0} && !disk.engines.empty()) {
        ask(disk);
      }
    }
  }

  /// Forgets what has no files and no engine, once it need not be put off any more, and domains
  /// that neither are attached nor have blocks there.
  void forget_unused(const std::set<DomainId>& attached);

  /// Nothing of what files hold is found again.
  void clear();
  /// At the end of each event: some slots of what was cleared are empty from now on.
  void sweep();
  struct Learned {
    bool any = false;
    std::vector<DiskId> all;  ///< of these all is known now
  };
  /// The same: some of what files were found to hold is known from now on.
  [[nodiscard]] Learned learn();
  /// One of the two is not over yet.
  [[nodiscard]] bool is_behind() const { return sweeps_ || !told_.empty(); }
  /// What the files of the class hold, known yet or not.
  [[nodiscard]] std::vector<DiskFound::Block> blocks(DiskId id) const;

  // ---- what the shell says ----
  void on_named(const DiskNamed& named);
  void on_opened(const DiskOpened& opened);
  void on_resized(const DiskResized& resized);
  void on_closed(const DiskClosed& closed);
  void on_found(const DiskFound& found);

 private:
  using Disks = std::map<DiskId, Disk>;
  struct Domain {
    std::string name;
    Digest label;  ///< once the disk is there
  };
  struct Told {
    DiskFound found;
    std::size_t known = 0;  ///< so many of its blocks are
  };
  [[nodiscard]] bool knows_too_many(DomainId domain);
  /// The shell has tables by number, so that of a forgotten class is used again.
  [[nodiscard]] DiskId free_number() const;
  void know(Disk& disk, ClassId model_class);
  void set_label(Domain& domain) const;
  Disks::iterator forget(Disks::iterator at);
  void ask(Disk& disk);
  void close(Disk& disk);
  void cut(Disk& disk);
  void grow(Disk& disk, DomainId domain);
  /// Somebody is to give up something for it. False: nobody has to.
  [[nodiscard]] bool push(const Disk& disk, DomainId domain, Bytes bytes);
  [[nodiscard]] bool has_place(Disk& disk);
  [[nodiscard]] std::vector<store::DiskUse> uses(bool places) const;
  void refuse(Disk& disk, const char* why);
  void put_off(Disk& disk);
  void got(Disk& disk);
  void try_all_again();

  Context& context_;
  Disks disks_;
  std::map<DiskShape, DiskId> by_shape_;
  std::map<std::pair<Fingerprint, ClassId>, DiskId> by_class_;  ///< one of each class at most
  std::map<DomainId, Domain> domains_;
  std::deque<Told> told_;
  bool sweeps_ = false;
};

}  // namespace kvd::core
