#pragma once

#include <cstdint>
#include <initializer_list>

/// Has the kernel refuse things to this process. It needs no privilege, only PR_SET_NO_NEW_PRIVS,
/// and cannot be undone.
namespace kvd::admin::sandbox {

/// Built with a sanitizer, whose library opens files and starts processes when it reports: nothing
/// is forbidden then.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

/// From now on the process opens no file, connects to no TCP port, listens at `ports` alone, and
/// reaches no other process by a signal or an abstract socket. Landlock enforces it as far as this
/// kernel has it. Call it before the first thread. False where the kernel has no Landlock.
[[nodiscard]] bool close_files(std::initializer_list<std::uint16_t> ports);

enum class Calls : std::uint8_t {
  kStarting,  ///< calls for listening, and for starting threads
  kServing,   ///< calls for answering clients, and for asking over open descriptors
};

/// Refuses every other system call with EPERM, in all threads. Among these are all calls that open,
/// connect, send descriptors, signal or trace other processes, or start programs. False where the
/// kernel has no seccomp.
[[nodiscard]] bool allow_calls(Calls calls);

}  // namespace kvd::admin::sandbox
