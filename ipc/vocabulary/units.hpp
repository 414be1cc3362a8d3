#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <type_traits>

namespace kvd {

/// A count of one unit. Distinct units are distinct types, so adding bytes to blocks does not
/// compile; the wrapper costs nothing and is trivially copyable.
/// Source: kvd; the words are those of kvd/DESIGN.md "Words".
template <class Tag>
struct Quantity {
  std::int64_t value = 0;

  constexpr Quantity() = default;
  explicit constexpr Quantity(std::int64_t count) : value(count) {}

  /// The same count as an unsigned size, for memory calls. Precondition: value >= 0.
  [[nodiscard]] constexpr std::size_t size() const { return static_cast<std::size_t>(value); }

  friend constexpr auto operator<=>(Quantity, Quantity) = default;
  friend constexpr Quantity operator+(Quantity a, Quantity b) {
    return Quantity(a.value + b.value);
  }
  friend constexpr Quantity operator-(Quantity a, Quantity b) {
    return Quantity(a.value - b.value);
  }
  friend constexpr Quantity operator*(Quantity a, std::int64_t n) { return Quantity(a.value * n); }
  friend constexpr Quantity operator*(std::int64_t n, Quantity a) { return a * n; }
  friend constexpr std::int64_t operator/(Quantity a, Quantity b) { return a.value / b.value; }
  constexpr Quantity& operator+=(Quantity other) { return value += other.value, *this; }
  constexpr Quantity& operator-=(Quantity other) { return value -= other.value, *this; }
};

using Bytes = Quantity<struct BytesTag>;    // of memory, or of what is copied
using Tokens = Quantity<struct TokensTag>;  // of a model's own tokenizer
/// Blocks of one layer group (kvd/DESIGN.md "Words"), each as large as one slot of its class.
using Blocks = Quantity<struct BlocksTag>;
using Layers = Quantity<struct LayersTag>;  // of a model, not layer groups

static_assert(sizeof(Bytes) == 8 && std::is_trivially_copyable_v<Bytes>);

constexpr Bytes kKiB{1024};  // powers of 1024 throughout: kvd knows no kB
constexpr Bytes kMiB{std::int64_t{1024} * 1024};
constexpr Bytes kGiB{std::int64_t{1024} * 1024 * 1024};

/// A transfer rate in bytes a second; zero means unknown or unlimited where the user says so.
struct BytesPerSecond {
  double value = 0;
  friend constexpr auto operator<=>(BytesPerSecond, BytesPerSecond) = default;
};

/// Steady time since an arbitrary origin (CLOCK_MONOTONIC in the daemon, zero in a simulation).
using Nanoseconds = std::chrono::nanoseconds;
using TimePoint = Nanoseconds;  // since that origin; signed, so that differences may be negative

constexpr double to_seconds(Nanoseconds t) { return static_cast<double>(t.count()) * 1e-9; }

/// Rounds up: how many pieces of `unit` cover `amount`. Precondition: unit > 0, amount >= 0.
template <class Tag>
constexpr std::int64_t pieces(Quantity<Tag> amount, Quantity<Tag> unit) {
  return (amount.value + unit.value - 1) / unit.value;
}

}  // namespace kvd
