#include "ipc/transport/unix_socket.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

namespace kvd::transport {
namespace {

constexpr int kBacklog = 64;
constexpr mode_t kMode = 0660;

UniqueFd new_socket(int type) {
  return UniqueFd(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

const sockaddr* generic(const sockaddr_un& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

/// Whether a daemon listens at the address. A full backlog (EAGAIN) counts as one.
bool answers(const sockaddr_un& address, int type) {
  const UniqueFd probe = new_socket(type);
  if (::connect(probe.get(), generic(address), sizeof address) == 0) return true;
  return errno != ECONNREFUSED && errno != ENOENT;
}

/// Removes the file of a dead daemon. Anything that is no socket is left alone.
Status make_way(const std::string& path, const sockaddr_un& address, int type) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0) return {};
  if (!S_ISSOCK(found.st_mode)) {
    return make_error(ErrorCode::kUnavailable,
                      path + " exists and is no socket; remove it or configure another path");
  }
  if (answers(address, type)) {
    return make_error(ErrorCode::kUnavailable,
                      "another process listens at " + path + "; stop it or configure another path");
  }
  if (::unlink(path.c_str()) != 0) {
    return errno_error(ErrorCode::kUnavailable, "cannot remove the stale socket " + path);
  }
  return {};
}

/// Lets one process at a time look at the path and take it: between finding a file stale and
/// replacing it, another daemon could put its own there. The empty lock file stays, as removing it
/// would make two locks of it. Errors: Unavailable while another holds it.
Result<UniqueFd> lock(const std::string& path) {
  const std::string file = path + ".lock";
  UniqueFd fd(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) return errno_error(ErrorCode::kUnavailable, "cannot open " + file);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    return make_error(ErrorCode::kUnavailable, "another process is about to listen at " + path +
                                                   "; stop it or configure another path");
  }
  return fd;
}

}  // namespace

Result<sockaddr_un> unix_address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return make_error(ErrorCode::kInvalidArgument,
                      "socket path '" + path + "' is empty or longer than " +
                          std::to_string(sizeof address.sun_path - 1) + " bytes");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

Result<UniqueFd> listen_unix(const std::string& path, int type) {
  KVD_ASSIGN_OR_RETURN(const sockaddr_un address, unix_address(path));
  KVD_ASSIGN_OR_RETURN(const UniqueFd locked, lock(path));
  KVD_TRY(make_way(path, address, type));
  UniqueFd socket = new_socket(type);
  if (!socket.valid()) return errno_error(ErrorCode::kUnavailable, "socket for " + path);
  if (::bind(socket.get(), generic(address), sizeof address) != 0) {
    return errno_error(ErrorCode::kUnavailable, "cannot bind " + path);
  }
  // Nobody can connect before listen(), so there is no moment with the umask's mode.
  if (::chmod(path.c_str(), kMode) != 0 || ::listen(socket.get(), kBacklog) != 0) {
    const Error error = errno_error(ErrorCode::kUnavailable, "cannot listen at " + path);
    ::unlink(path.c_str());
    return error;
  }
  return socket;
}

}  // namespace kvd::transport
