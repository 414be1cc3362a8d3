#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

/// What a program does first and last with its standard descriptors.
namespace kvd {

/// Gives each of 0, 1 and 2 that is closed to /dev/null, where the wrong direction makes reading
/// and writing fail as before. Else a socket or a pool would get the number, and what is printed
/// would go there. Call it before anything is opened.
inline void open_standard_descriptors() {
  for (int fd = 0; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0) (void)::open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
  }
}

/// The status that the program ends with. It is a failure where the result could not be written.
[[nodiscard]] inline int status_after_output(const char* program, int status) {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  std::fprintf(stderr, "%s: standard output cannot be written%s%s\n", program,
               errno != 0 ? ": " : "", errno != 0 ? std::strerror(errno) : "");
  return status != 0 ? status : 1;
}

}  // namespace kvd
