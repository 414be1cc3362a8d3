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
#include "kvd/daemon/page_lease.hpp"

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
  std::vector<bool> attached;  ///< by rank
  struct Said {                ///< of a slab that was sent, by which ranks, as bits
    std::uint64_t mapped = 0;
    std::uint64_t unmapped = 0;
  };
  std::map<SlabIndex, Said> slabs;
  bool ended = false;  ///< a rank has gone: no command is served any more

  /// In words.
  [[nodiscard]] std::string called() const { return "group " + std::to_string(number); }

  [[nodiscard]] std::uint32_t ranks() const { return static_cast<std::uint32_t>(attached.size()); }
  [[nodiscard]] std::uint32_t present() const {
    return static_cast<std::uint32_t>(std::count(attached.begin(), attached.end(), true));
  }
  [[nodiscard]] bool complete() const { return present() == ranks(); }
  /// The same for all ranks, as bits.
  [[nodiscard]] std::uint64_t everyone() const { return ~std::uint64_t{0} >> (64 - ranks()); }
};

}  // namespace kvd::daemon
