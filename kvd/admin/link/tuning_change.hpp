#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "kvd/admin/link/messages.hpp"
#include "kvd/core/door/tuning.hpp"

namespace kvd::admin::link {

/// How the value of a key is given.
enum class Kind : std::uint8_t { kText, kNumber, kTruth, kWhole, kBytesOrAuto };

/// A key of the policy document and of the tuning.
struct TuningKey {
  std::string_view path;  ///< "rotation.alpha"
  Kind kind = Kind::kNumber;
  void (*set)(core::Tuning&, const Assignment&) = nullptr;
};
/// In the order of the document.
[[nodiscard]] std::span<const TuningKey> tuning_keys();

/// The tag of a part's version: the same values have the same tag, whoever set them.
[[nodiscard]] std::uint64_t tag_of(const core::Tuning& tuning, Part part);

/// The tuning after a change of it. Pure, so that the control thread makes changes one after the
/// other and none undoes another's.
/// Errors: StaleSession when the change is conditional and the part has none of its tags;
///         InvalidArgument, with the key's path before a colon, for what Tuning::faults() names.
[[nodiscard]] Result<core::Tuning> changed(core::Tuning tuning, const Change& change,
                                           std::span<const Assignment> assignments);

}  // namespace kvd::admin::link
