#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ipc/vocabulary/digest.hpp"
#include "ipc/vocabulary/ids.hpp"
#include "kvd/core/context.hpp"
#include "kvd/core/session.hpp"
#include "kvd/store/disk_directory.hpp"
#include "kvd/store/key.hpp"
#include "planner/model/tier_rates.hpp"
#include "planner/policy/load.hpp"

namespace kvd::core {

/// Which files have the blocks of which class, what these hold, and what blocks are called in them.
/// Each class of blocks (fingerprint and shape) has files of its own, opened when the first engine
/// tells of its content.
///
/// Source: kvd/DESIGN.md "Blocks on disk".
///
/// Owner: control thread. Errors: none. Cost: O(log classes), and names that are computed.
class DiskClasses {
 public:
  struct Disk {
    DiskId id;
    DiskShape shape;
    TimePoint since{0};                               ///< its files were asked for
    bool opening = true;                              ///< what it holds may yet be told
    std::optional<store::DiskDirectory> directory{};  ///< none: it is not open
    bool ready = false;                               ///< all that it held is known
    planner::TierRates rates{};                       ///< of reads
    planner::LoadMemory memory{};
    [[nodiscard]] Bytes row_bytes() const { return shape.slot_bytes * shape.groups; }
  };

  explicit DiskClasses(Context& context) : context_(context) {}

  /// Blocks are kept on disk.
  [[nodiscard]] bool on() const { return static_cast<bool>(context_.config.disk.name); }
  /// The session's engine has told of content of this shape, in blocks of the class.
  void meet(const Session& session, ClassId model_class, const DiskShape& shape);
  /// Null: it has no files, or its domain has not met them.
  [[nodiscard]] Disk* find(const store::KeySpace& space);
  [[nodiscard]] Disk& at(DiskId id) { return disks_[id.value - 1]; }
  [[nodiscard]] std::deque<Disk>& all() { return disks_; }
  [[nodiscard]] const std::deque<Disk>& all() const { return disks_; }
  /// What a block is called outside of this node. Precondition: find() of the space.
  [[nodiscard]] Digest name(const store::KeySpace& space, const Digest& digest) const;
  /// What the domain is called in the files. Precondition: find() of a space of it.
  [[nodiscard]] Digest label(DomainId domain) const;

  // ---- what the shell says ----
  void on_opened(const DiskOpened& opened);
  void on_found(const DiskFound& found);

 private:
  Context& context_;
  std::deque<Disk> disks_;  ///< by id - 1
  std::map<DiskShape, DiskId> by_shape_;
  std::map<std::pair<Fingerprint, ClassId>, DiskId> by_class_;
  std::map<DomainId, std::string> domains_;
};

}  // namespace kvd::core
