#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "kvd/core/door/status.hpp"

namespace kvd::admin {

/// {"snapshots": […]}: what the daemon's policies would be asked now, each as kvd-plan reads it, so
/// that a decision can be made again and looked into. Rotation has one a domain, the others one an
/// engine. Ids are engine/request. Rotation counts bytes where kvd-plan says blocks, as models of
/// several sizes share a pool. It is empty for a kind other than rotate, place and admit.
/// Source: kvd design (kvd-plan's input).
[[nodiscard]] std::optional<std::string> snapshot_document(const core::ControllerStatus& status,
                                                           std::string_view kind);

}  // namespace kvd::admin
