#pragma once

#include <string>
#include <string_view>

#include "kvd/sim/profile/document.hpp"

namespace kvd::sim {

/// Returns `base` with everything that a daemon measured in place of its own figures; the comment
/// of each figure says where it comes from. `status` is the daemon's /v1/status document, as
/// `kvdctl status --json` prints it.
///
/// Measured figures are the tiers' sizes, the link in both directions, and the mean step. One mean
/// does not tell an iteration's terms apart: all are scaled alike, so that the base's model gives
/// the measured time for the daemon's mean batch. Errors: InvalidArgument for text that is no such
/// document, and for a result that does not pass check().
[[nodiscard]] Result<ProfileDocument> calibrated(const ProfileDocument& base,
                                                 std::string_view status, const std::string& name);

}  // namespace kvd::sim
