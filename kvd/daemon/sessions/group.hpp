#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ipc/vocabulary/clock.hpp"
#include "ipc/vocabulary/ids.hpp"
#include "kvd/core/controller.hpp"
#include "kvd/daemon/base/page_lease.hpp"

namespace kvd::daemon {

/// A tensor-parallel group: each rank is a peer with socket, pages and commands of its own; to the
/// Controller all are one engine, with the number of rank 0.
/// Source: kvd/DESIGN.md "Ranks".
struct Group {
  std::uint64_t number = 0;  ///< the engine's own
  DomainId domain;
  std::uint32_t uid = 0;
  core::AttachGrant grant;
  /// Where the device raises the fences of the group's copies: a page that no engine has. Each
  /// rank's page follows, so that no rank can make another believe in bytes that are not there.
  std::shared_ptr<PageLease> fences;
  std::vector<bool> attached;     ///< by rank
  bool streams_layers = true;     ///< of those who have attached
  std::vector<DeviceId> devices;  ///< by rank; meaningless for a rank that has not attached
  struct Said {                   ///< what ranks said of a slab that was sent, a bit for each rank
    std::uint64_t sent_to = 0;
    std::uint64_t mapped = 0;
    std::uint64_t unmapped = 0;
  };
  std::map<SlabIndex, Said> slabs;
  bool ended = false;  ///< a rank has gone: no command is served any more
  TimePoint made{0};   ///< by the first rank

  /// Ranks yet to come for which seats are kept.
  [[nodiscard]] std::uint32_t awaited(TimePoint now) const {
    constexpr Nanoseconds kPatience = std::chrono::seconds(10);
    return ended || now - made >= kPatience ? 0 : ranks() - present();
  }

  /// In words.
  [[nodiscard]] std::string called() const { return "group " + std::to_string(number); }

  [[nodiscard]] std::uint32_t ranks() const { return static_cast<std::uint32_t>(attached.size()); }
  [[nodiscard]] std::uint32_t present() const {
    return static_cast<std::uint32_t>(std::count(attached.begin(), attached.end(), true));
  }
  [[nodiscard]] bool complete() const { return present() == ranks(); }
  /// Its ranks have several devices between them.
  [[nodiscard]] bool apart() const {
    return std::any_of(devices.begin(), devices.end(),
                       [&](DeviceId device) { return device != devices.front(); });
  }
  /// The ranks on the device, as bits.
  [[nodiscard]] std::uint64_t ranks_on(DeviceId device) const {
    std::uint64_t bits = 0;
    for (std::size_t rank = 0; rank < devices.size(); ++rank) {
      if (devices[rank] == device) bits |= std::uint64_t{1} << rank;
    }
    return bits;
  }
};

}  // namespace kvd::daemon
