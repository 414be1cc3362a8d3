#pragma once

#include <sys/types.h>

#include <optional>

namespace kvd::gpu {

/// The wait status of a child that ends within `limit_s`; nothing where it does not.
[[nodiscard]] std::optional<int> reap(pid_t pid, double limit_s);

}  // namespace kvd::gpu
