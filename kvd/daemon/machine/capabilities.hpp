#pragma once

#include <linux/capability.h>

#include <array>
#include <cstdint>
#include <span>

#include "ipc/vocabulary/result.hpp"

namespace kvd::daemon {

/// The capabilities that kvd keeps of those it was started with. SECURITY.md says why.
inline constexpr std::array<int, 5> kKeptCapabilities = {
    CAP_KILL,      ///< to end a silent engine of another user
    CAP_IPC_LOCK,  ///< to pin memory beyond RLIMIT_MEMLOCK (CUDA)
    CAP_SYS_NICE,  ///< to place memory on a NUMA node (CUDA, hugetlb)
    CAP_SETUID,    ///< to start the child that serves REST under another user
    CAP_SETGID,    ///< likewise
};

enum class Programs : std::uint8_t {
  kNone,    ///< what this process starts gets no more than it keeps itself
  kHelpers  ///< root's helpers keep their own: libcuda starts nvidia-modprobe
};

/// Gives up every capability but `kept`, for this thread and all it starts: call it before there is
/// another. Nothing happens to a process without capabilities.
/// Source: capabilities(7). Errors: Internal with the reason of the kernel.
[[nodiscard]] Status keep_capabilities(std::span<const int> kept, Programs programs);

}  // namespace kvd::daemon
