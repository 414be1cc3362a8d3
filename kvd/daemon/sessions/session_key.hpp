#pragma once

#include "ipc/vocabulary/ids.hpp"

namespace kvd::daemon {

/// 128 bits from the kernel's generator.
[[nodiscard]] SessionKey make_session_key();

}  // namespace kvd::daemon
