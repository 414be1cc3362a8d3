#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/units.hpp"

namespace kvd::store {

/// What the files of one class take of the disk.
struct DiskUse {
  std::uint32_t id = 0;
  std::set<DomainId> domains;  ///< that keep blocks there
  Bytes bytes;
  Bytes grain;        ///< it gives bytes up in steps of this size
  TimePoint used{0};  ///< last
  bool idle = true;   ///< no engine of the class is attached
  bool free = true;   ///< the class may give up files now
};

/// A class that asks for this many more bytes.
struct DiskWish {
  std::uint32_t id = 0;
  DomainId domain;
  Bytes bytes;
};

/// Which class gives up a grain so that the wish can be met; none: every class has a right to what
/// it has.
///
/// Domains have equal shares. Another domain's class gives way only where all domains that use it
/// have more than theirs, and the asker's does not get more than its own. Within a domain a class
/// makes way that is idle, or larger than the asker's would be. The longest idle goes first, then
/// the largest.
/// Source: kvd design. Pure. Cost: O(classes).
[[nodiscard]] std::optional<std::uint32_t> disk_gives_way(const std::vector<DiskUse>& all,
                                                          const DiskWish& wish, Bytes size);

}  // namespace kvd::store
