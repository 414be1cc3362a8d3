#pragma once

#include <string>

#include "kvd/core/door/status.hpp"

namespace kvd::admin {

/// What holds back engines' requests now, who has the memory, and which setting to change: one
/// finding for each engine that has a waiting request whose goal has passed.
/// Source: kvd/DESIGN.md "What operators see and change".
[[nodiscard]] std::string load_document(const core::ControllerStatus& status);

}  // namespace kvd::admin
