#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "ipc/vocabulary/result.hpp"
#include "kvd/store/blocks/entries.hpp"

namespace kvd::store {

/// Chooses which block goes first when a tier needs room for another. There is one object a tier.
/// The index says what happens to the blocks in the tier, and when each may leave
/// (Entry::may_leave) and when not any more; among those that may, the policy names the next. So
/// every policy takes leaves before heads, and none can take a leased block.
///
/// Owner: control thread. Errors: none. Cost: O(log blocks) a call, but for what victim() says.
class Eviction {
 public:
  virtual ~Eviction() = default;

  /// The tier has it now, and somebody leases it.
  virtual void added(EntryId) {}
  /// It was found, or stored once more, and somebody leases it.
  virtual void touched(EntryId) {}
  /// The tier no longer has it, so it must not be chosen to leave.
  virtual void removed(EntryId) {}

  virtual void may_leave(EntryId) = 0;
  virtual void must_stay(EntryId) = 0;
  /// The next to leave; none: none may. Stays until the policy is told of something.
  [[nodiscard]] virtual EntryId victim() = 0;
  /// How much the block is wanted, whether the tier has it or not. The block that is wanted less
  /// leaves first. A policy that cannot say has the same for all.
  [[nodiscard]] virtual double rank(EntryId) const { return 0; }

  /// Whether it counts among those that may leave, and how many do.
  [[nodiscard]] virtual bool may(EntryId) const = 0;
  [[nodiscard]] virtual std::size_t size() const = 0;
  [[nodiscard]] virtual std::size_t allocated_bytes() const = 0;
};

enum class EvictionKind : std::uint8_t {
  kDefault,  ///< the one not asked for longest, but popular ones later (TurnoverEviction)
  kLru,      ///< the longest not asked for
};
constexpr std::array<EvictionKind, 2> kEvictionKinds = {EvictionKind::kDefault, EvictionKind::kLru};
[[nodiscard]] std::string_view name(EvictionKind kind);
/// Errors: InvalidArgument naming those there are.
[[nodiscard]] Result<EvictionKind> eviction_kind(std::string_view name);

}  // namespace kvd::store
