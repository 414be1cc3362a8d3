#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "kvd/admin/link/messages.hpp"
#include "kvd/admin/link/snapshot.hpp"
#include "kvd/core/door/tuning.hpp"

namespace kvd::admin {

/// A change of one part of the tuning, as a client asked for it.
struct TuningPatch {
  link::Part part = link::Part::kPolicy;
  /// The change is made only while the part has one of these tags; none: whatever it has.
  std::optional<std::vector<std::uint64_t>> if_match = std::nullopt;
  std::vector<link::Assignment> assignments;
};

/// What the admin interface needs of kvd. Called on the REST threads, so every function is
/// thread-safe and answers in a bounded time.
/// Errors: DeadlineExceeded when kvd's control thread does not answer in time, Unavailable while
///         kvd drains.
class AdminBackend {
 public:
  virtual ~AdminBackend() = default;
  /// Never null; at most a tenth of a second old, and younger than every change() that has ended.
  [[nodiscard]] virtual Result<std::shared_ptr<const Snapshot>> snapshot() = 0;
  [[nodiscard]] virtual Result<link::Standing> standing(std::string_view token) = 0;
  /// The tuning after the change, in force at the next step. Errors besides: PermissionDenied for
  /// another token, StaleSession for no tag of if_match, InvalidArgument with the key's path.
  [[nodiscard]] virtual Result<core::Tuning> change(std::string_view token,
                                                    const TuningPatch& patch) = 0;
  /// Empties the prefix cache, but for blocks that requests run on. Errors besides:
  /// PermissionDenied for another token.
  [[nodiscard]] virtual Status clear_cache(std::string_view token) = 0;
};

}  // namespace kvd::admin
