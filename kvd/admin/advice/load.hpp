#pragma once

#include <string>

#include "kvd/core/door/status.hpp"

namespace kvd::admin {

/// What holds back which engine's requests now, who has the memory, and the setting to turn: a
/// finding for each engine of which a request waits whose goal has passed.
/// Source: kvd/DESIGN.md "What operators see and change".
[[nodiscard]] std::string load_document(const core::ControllerStatus& status);

}  // namespace kvd::admin
