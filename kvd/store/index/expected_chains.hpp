#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ipc/vocabulary/digest.hpp"

namespace kvd::store {

/// The chain that a block is expected to be stored in, as an engine has asked for it as a part of
/// that chain. Each has the one place that it can have, so a newer one may take the place of an
/// older one.
class ExpectedChains {
 public:
  /// As many have a place.
  static constexpr std::size_t kPlaces = 32768;

  void expect(const Digest& digest, std::uint32_t chain);
  /// 0: not known.
  [[nodiscard]] std::uint32_t of(const Digest& digest) const;

 private:
  struct Place {
    std::uint32_t tag = 0;
    std::uint32_t chain = 0;
  };
  std::vector<Place> places_;  ///< none before the first
};

}  // namespace kvd::store
