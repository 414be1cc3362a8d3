#pragma once

#include <array>
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

/// Which files hold the blocks of which class, what they hold, and what blocks are called in them.
///
/// Each class of blocks (fingerprint and shape) has files of its own. Existing files are opened
/// when an engine tells of its content. Where there are none, small ones are made for the first
/// block to be written, and they grow with what is written. All files together have a bound
/// (disk.size), and a bounded number is open at a time. A class that wants more than is left takes
/// it from others by the rule of store::disk_gives_way. If the rule refuses, the refusal is logged
/// and the class tries again later, as it does with files that could not be opened.
///
/// Source: kvd/DESIGN.md "Blocks on disk".
///
/// Owner: control thread. Errors: none. Cost: O(log classes), plus the names that are computed;
/// O(classes) where one wants more than there is.
class DiskClasses {
 public:
  enum class State : std::uint8_t {
    kNone,     ///< no files are open
    kOpening,  ///< opening was asked for
    kOpen,
    kEnding,   ///< reads and writes under way end first
    kClosing,  ///< closing was asked for
  };
  struct Disk {
    DiskId id;
    DiskShape shape;
    std::string model;  ///< model of its blocks; else what an engine of it is called
    DomainId domain;    ///< domain of that engine
    ClassId met_in{};   ///< the class in which an engine last told of it
    State state = State::kNone;
    TimePoint since{0};                               ///< when its files were first asked for
    bool opening = true;                              ///< more of what it holds may still be told
    std::optional<store::DiskDirectory> directory{};  ///< none: it is not open
    bool ready = false;                               ///< all that it held is known
    std::array<planner::TierRates, kLowerTiers>
        rates{};                       ///< rates of reads: of the disk, of the remote store
    std::size_t remote_under_way = 0;  ///< reads and writes there
    planner::LoadMemory memory{};
    struct Files {
      Bytes bytes, grain;          ///< the files grow and give way by a grain
      bool resizing = false;       ///< a resize was asked for, or is about to be
      bool growing = false;        ///< the resize makes them larger
      std::optional<Bytes> cut{};  ///< size that they shrink to once nobody uses what is beyond
    } files{};
    std::set<DomainId> domains{};  ///< domains that keep blocks there
    std::set<EngineId> engines{};  ///< engines that told of it; some may have gone
    TimePoint used{0};
    bool wanted = false;   ///< a block is to be written, so files must be made
    bool refused = false;  ///< it does not get what it wants, and the log says so
    struct Tries {
      Nanoseconds pause{0};  ///< between two
      TimePoint again{0};    ///< time of the next
    } tries{};
    /// Whether blocks can be written. They cannot while the files grow and no slot is free: a write
    /// now would cost another block its slot, though new slots are about to come.
    [[nodiscard]] bool takes_writes() const {
      return directory && ready && !(files.growing && directory->free() == 0);
    }
    [[nodiscard]] Bytes row_bytes() const { return shape.slot_bytes * shape.groups; }
  };

  /// `labels` are told of what the files get and lose.
  DiskClasses(Context& context, store::Labels& labels) : context_(context), labels_(labels) {}

  /// Blocks are kept on disk, now or later.
  [[nodiscard]] bool has_disk() const {
    return static_cast<bool>(context_.config.disk.name) || context_.config.disk.awaited;
  }
  /// The session's engine has told of content of this shape, in blocks of the class.
  void meet(const Session& session, ClassId model_class, const DiskShape& shape);
  /// Null: the class is not known, its domain has not met it, or its files are being closed. Where
  /// there is a remote store and no disk, the class has no files.
  [[nodiscard]] Disk* find(const store::KeySpace& space);
  [[nodiscard]] Disk& at(DiskId id) { return disks_.at(id); }
  [[nodiscard]] std::map<DiskId, Disk>& all() { return disks_; }
  [[nodiscard]] const std::map<DiskId, Disk>& all() const { return disks_; }
  /// The block's name outside this node. Precondition: find() of the space.
  [[nodiscard]] Digest name(const store::KeySpace& space, const Digest& digest) const;
  /// The domain's name in the files. Precondition: find() of a space of the domain.
  [[nodiscard]] const Digest& label(DomainId domain) const { return domains_.at(domain).label; }

  /// The same in the remote store.
  [[nodiscard]] Digest remote_name(const store::KeySpace& space, const Digest& digest) const {
    return context_.config.remote.name(domains_.at(space.domain).name, space.fingerprint, digest);
  }
  [[nodiscard]] const Digest& remote_label(DomainId domain) const {
    return domains_.at(domain).remote_label;
  }

  /// A block of the domain is to be written: makes sure that there are files with room, or asks for
  /// them.
  void want(Disk& disk, DomainId domain);
  /// Tries again whatever is due, and goes on with what waited for the end of reads and writes.
  /// `busy`: reads or writes of the class are under way. `gone`: the engine is not attached any
  /// more.
  template <class Busy, class Gone>
  void go_on(Busy busy, Gone gone) {
    for (auto& [id, disk] : disks_) {
      std::erase_if(disk.engines, gone);
      if (disk.state == State::kEnding && !busy(id)) close(disk);
      if (disk.files.cut) cut(disk);
      if (disk.state == State::kNone && disk.tries.again != TimePoint{0} && !disk.engines.empty()) {
        ask(disk);
      }
    }
  }

  /// Forgets classes that have no files and no engine, once they need not be kept any longer, and
  /// domains that are not attached and have no blocks there.
  void forget_unused(const std::set<DomainId>& attached);

  /// Nothing that the files hold is found again.
  void clear();
  /// At the end of each event: empties a part of the slots of what was cleared.
  void sweep();
  struct Learned {
    bool any = false;
    std::vector<DiskId> all;  ///< classes whose files are all known now
  };
  /// At the end of each event: learns a part of what the files were found to hold.
  [[nodiscard]] Learned learn();
  /// Emptying or learning has more to do.
  [[nodiscard]] bool is_behind() const { return sweeps_ || !told_.empty(); }
  /// What the files of the class hold, whether or not it is known yet.
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
    Digest remote_label;
  };
  struct Told {
    DiskFound found;
    std::size_t known = 0;  ///< how many of its blocks are known
  };
  [[nodiscard]] bool knows_too_many(DomainId domain);
  /// The shell keeps tables by number, so the number of a forgotten class is used again.
  [[nodiscard]] DiskId free_number() const;
  void know(Disk& disk, ClassId model_class);
  void set_label(Domain& domain) const;
  Disks::iterator forget(Disks::iterator at);
  void ask(Disk& disk);
  void close(Disk& disk);
  void cut(Disk& disk);
  void grow(Disk& disk, DomainId domain);
  /// Whether other files are to give up something for this class. False: none have to.
  [[nodiscard]] bool push(const Disk& disk, DomainId domain, Bytes bytes);
  [[nodiscard]] bool has_place(Disk& disk);
  [[nodiscard]] std::vector<store::DiskUse> uses(bool places) const;
  void refuse(Disk& disk, const char* why);
  void put_off(Disk& disk);
  void got(Disk& disk);
  void try_all_again();

  Context& context_;
  store::Labels& labels_;
  Disks disks_;
  std::map<DiskShape, DiskId> by_shape_;
  std::map<std::pair<Fingerprint, ClassId>, DiskId> by_class_;  ///< at most one of each class
  std::map<DomainId, Domain> domains_;
  std::deque<Told> told_;
  bool sweeps_ = false;
};

}  // namespace kvd::core
