#pragma once

#include <cerrno>
#include <cstring>
#include <string>

namespace kvd {

/// What the error of a call on a file means, with the remedy where the kernel's words hide it.
/// Memory files (memfd) count as files.
inline std::string errno_words(int error) {
  if (error == EFBIG) {
    return "the limit on the size of files is smaller: raise LimitFSIZE (ulimit -f)";
  }
  return std::strerror(error);
}

}  // namespace kvd
