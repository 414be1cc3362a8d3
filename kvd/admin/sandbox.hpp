#pragma once

#include <cstdint>
#include <initializer_list>

/// What the kernel refuses a process that has given itself up to it. Needs no privilege, only
/// PR_SET_NO_NEW_PRIVS, and cannot be undone.
namespace kvd::admin::sandbox {

/// Built with a sanitizer, whose library opens files and starts processes when it reports: nothing
/// is forbidden then.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

/// Opens no file from now on, connects to no TCP port, listens at `ports` alone, and reaches no
/// process outside by a signal or an abstract socket: by Landlock, as far as this kernel's goes.
/// Before the first thread. False where the kernel has no Landlock.
[[nodiscard]] bool close_files(std::initializer_list<std::uint16_t> ports);

enum class Calls : std::uint8_t {
  kStarting,  ///< to listen, and to start threads
  kServing,   ///< to answer clients that come, and to ask over what is open
};

/// Every other system call is refused with EPERM, in all threads: among them all that open,
/// connect, send descriptors, signal or trace others, or start programs. False where the kernel has
/// no seccomp.
[[nodiscard]] bool allow_calls(Calls calls);

}  // namespace kvd::admin::sandbox
