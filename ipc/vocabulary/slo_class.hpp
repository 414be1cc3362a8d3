#pragma once

#include <cstdint>
#include <string_view>

namespace kvd {

/// The number of an SLO class, by its name, for messages of fixed size. Engines need not know which
/// classes there are, and classes may change while engines run. Never 0, which stands for none.
/// Source: FNV-1a, 32 bits. The daemon looks a number up among its own classes, 64 at most.
[[nodiscard]] constexpr std::uint32_t slo_class_number(std::string_view name) {
  std::uint32_t hash = 2166136261u;
  for (const char c : name) {
    hash = (hash ^ static_cast<std::uint8_t>(c)) * 16777619u;
  }
  return hash == 0 ? 1 : hash;
}

}  // namespace kvd
