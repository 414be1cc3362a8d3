#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "kvd/admin/link/messages.hpp"
#include "kvd/core/door/events.hpp"
#include "kvd/core/door/status.hpp"

namespace kvd::admin::link {

/// A tag that changes with who is out of service and until when, but not with what they have left.
[[nodiscard]] std::uint64_t tag_of_drain(const core::ControllerStatus& status);

/// The order that the Controller is to get. Pure. Errors: StaleSession when the change is
/// conditional and the status has none of its tags; NotFound for an engine that is not attached.
/// Messages begin with the key's path and a colon.
[[nodiscard]] Result<std::vector<core::Drain>> drains_of(const core::ControllerStatus& status,
                                                         const Change& change,
                                                         std::span<const Assignment> assignments);

}  // namespace kvd::admin::link
