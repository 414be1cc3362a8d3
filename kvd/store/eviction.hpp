#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "ipc/vocabulary/result.hpp"
#include "kvd/store/entries.hpp"

namespace kvd::store {

/// Chooses which block goes first when a tier needs room for another. There is one object a tier.
/// The index says what happens to the blocks in the tier, and when each may leave
/// (Entry::may_leave) and when not any more; among those that may, the policy names the next. So
/// all policies take leaves before heads, and none can take what somebody counts on.
///
/// Owner: control thread. Errors: none. Cost: O(log blocks) a call, but for what victim() says.
class Eviction {
 public:
  virtual ~Eviction() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;
  /// Whether it is to be told what is touched.
  [[nodiscard]] virtual bool minds_touches() const { return true; }

  /// The tier has it now.
  virtual void added(EntryId) {}
  /// It was found, or stored once more.
  virtual void touched(EntryId) {}
  /// The tier does not have it any more. It may not leave then.
  virtual void removed(EntryId) {}

  /// Computing the blocks of the space costs 2^`log2_times` times what their worth says (Entry).
  virtual void costs(SpaceId, [[maybe_unused]] double log2_times) {}

  virtual void may_leave(EntryId) = 0;
  virtual void must_stay(EntryId) = 0;
  /// The next to leave; none: none may. Stays until the policy is told of something.
  [[nodiscard]] virtual EntryId victim() = 0;

  /// Whether it counts among those that may leave, and how many do.
  [[nodiscard]] virtual bool may(EntryId) const = 0;
  [[nodiscard]] virtual std::size_t size() const = 0;
  [[nodiscard]] virtual std::size_t allocated_bytes() const = 0;
};

enum class EvictionKind : std::uint8_t {
  kSavedTime,  ///< least seconds of recomputing saved a byte, times how often it was asked for
  kLru,        ///< longest not asked for
  kS3Fifo,     ///< Yang et al., SOSP 2023: what was asked for once goes fast
  kSieve,      ///< Zhang et al., NSDI 2024: the oldest not asked for since the hand passed
};
constexpr std::array<EvictionKind, 4> kEvictionKinds = {
    EvictionKind::kSavedTime, EvictionKind::kLru, EvictionKind::kS3Fifo, EvictionKind::kSieve};
[[nodiscard]] std::string_view name(EvictionKind kind);
/// Errors: InvalidArgument naming those there are.
[[nodiscard]] Result<EvictionKind> eviction_kind(std::string_view name);

}  // namespace kvd::store
