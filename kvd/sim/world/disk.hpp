#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "kvd/core/door/effects.hpp"
#include "kvd/core/door/events.hpp"
#include "kvd/sim/run/setting.hpp"

namespace kvd::sim {

/// Cached blocks on a disk. Reads go in the order in which they were asked for, one after the other
/// at the disk's rate, each `latency` late; writes go beside them at the same rate. A read that
/// cannot be there by its deadline fails then; if it had not begun, it takes none of the disk's
/// time.
/// Owner:  one thread, virtual time that never runs backwards.
class Disk {
 public:
  struct Answer {
    TimePoint due;
    core::DiskFinished finished;
  };

  /// The run began at `origin`.
  Disk(const DiskModel& model, TimePoint origin) : model_(model), origin_(origin) {}

  /// How many blocks of the class there is room for.
  [[nodiscard]] std::uint32_t slots(const core::DiskShape& shape) const;
  [[nodiscard]] Answer write(const core::WriteDisk& order, TimePoint now);
  [[nodiscard]] Answer read(const core::ReadDisk& order, TimePoint now);

 private:
  struct Slot {
    Digest domain, name;
    std::uint64_t generation = 0;
  };

  [[nodiscard]] Nanoseconds service(const core::DiskBlock& block, TimePoint now) const;

  DiskModel model_;
  TimePoint origin_;
  /// When the disk will have finished everything that it has been asked for.
  TimePoint reads_until_{0}, writes_until_{0};
  std::map<std::pair<core::DiskId, std::uint32_t>, Slot> slots_;
  std::uint64_t generation_ = 0;
};

}  // namespace kvd::sim
