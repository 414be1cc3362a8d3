#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "kvd/admin/link/messages.hpp"
#include "kvd/core/door/tuning.hpp"

namespace kvd::admin::link {

/// The tag of a part's version: the same values have the same tag, whoever set them.
[[nodiscard]] std::uint64_t tag_of(const core::Tuning& tuning, Part part);

/// The tuning after a change of it. Pure, so that the control thread makes changes one after the
/// other and none undoes another's.
/// Errors: StaleSession when the change is conditional and the part has none of its tags;
///         InvalidArgument, with the key's path before a colon, for what Tuning::faults() names.
[[nodiscard]] Result<core::Tuning> changed(core::Tuning tuning, const Change& change,
                                           std::span<const Assignment> assignments);

}  // namespace kvd::admin::link
