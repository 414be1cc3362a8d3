#include "kvd/daemon/machine/admin_token.hpp"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>

#include "ipc/vocabulary/errno_words.hpp"
#include "ipc/vocabulary/hex.hpp"
#include "ipc/vocabulary/unique_fd.hpp"

namespace kvd::daemon {

namespace {

std::string random_hex() {
  std::array<std::uint8_t, 32> bytes{};
  KVD_CHECK(::getrandom(bytes.data(), bytes.size(), 0) == 32, "the kernel has no randomness");
  return hex(bytes);
}

Status check_file(const struct stat& facts, const std::string& path) {
  if (!S_ISREG(facts.st_mode)) {
    return make_error(ErrorCode::kPermissionDenied,
                      path + " is no plain file: remove it for a new one");
  }
  if (facts.st_uid != ::geteuid()) {
    return make_error(ErrorCode::kPermissionDenied,
                      path + " belongs to uid " + std::to_string(facts.st_uid) +
                          ", who knows its text: remove it for a new one");
  }
  if ((facts.st_mode & 077) != 0) {
    return make_error(ErrorCode::kPermissionDenied,
                      path + " may be read by others: chmod 600 it, or remove it for a new one");
  }
  return {};
}

Result<std::string> read_token(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat facts {};
  if (!fd.valid() || ::fstat(fd.get(), &facts) != 0) {
    return make_error(ErrorCode::kUnavailable,
                      "cannot read the admin token in " + path + ": remove it for a new one");
  }
  KVD_TRY(check_file(facts, path));
  std::array<char, 256> buffer{};
  const ssize_t size = ::read(fd.get(), buffer.data(), buffer.size());
  std::string token(buffer.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  if (token.size() < 16) {
    return make_error(ErrorCode::kInvalidArgument,
                      path + " holds no token of 16 characters or more: remove it for a new one");
  }
  return token;
}

/// False and errno where it cannot be; then no file is left in which the next start finds no token.
bool write_token(const std::string& path, const std::string& token) {
  const UniqueFd made(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  const std::string line = token + "\n";
  if (!made.valid()) return false;
  errno = ENOSPC;  // a file that runs full takes a part of the line without an error
  if (::write(made.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size())) {
    return true;
  }
  const int why = errno;
  ::unlink(path.c_str());
  errno = why;
  return false;
}

}  // namespace

void restore_token(const std::string& path, const std::string& token) {
  struct stat facts {};
  if (::lstat(path.c_str(), &facts) != 0 && errno == ENOENT) (void)write_token(path, token);
}

Result<std::string> load_or_make_token(const std::string& path) {
  struct stat facts {};
  if (::lstat(path.c_str(), &facts) == 0) {
    KVD_TRY(check_file(facts, path));  // before it is opened, which may be forbidden
    return read_token(path);
  }
  const std::string token = random_hex();
  if (!write_token(path, token)) {
    return make_error(ErrorCode::kUnavailable, "cannot write the admin token to " + path + ": " +
                                                   errno_words(errno) + "; set paths.token_file");
  }
  return token;
}

}  // namespace kvd::daemon
