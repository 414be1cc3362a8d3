#include "ipc/transport/unix_socket.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace kvd::transport {
namespace {

#ifndef SO_PASSRIGHTS
constexpr int SO_PASSRIGHTS = 83;  // Linux 6.16; not in Debian 12's headers
#endif

constexpr int kBacklog = 256;
constexpr mode_t kMode = 0660;
constexpr rlim_t kReserve = 64;

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
  UniqueFd fd(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  if (!fd.valid()) {
    return errno_error(ErrorCode::kUnavailable,
                       "cannot open " + file + " (be its owner, or configure another path)");
  }
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    return make_error(ErrorCode::kUnavailable, "another process is about to listen at " + path +
                                                   "; stop it or configure another path");
  }
  return fd;
}

/// Whether more descriptors are free than the reserve. The kernel gives out the lowest first.
bool more_than_the_reserve(int any) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return true;
  const UniqueFd lowest(::fcntl(any, F_DUPFD_CLOEXEC, 0));
  const rlim_t reserve = std::min(kReserve, limit.rlim_cur / 8);
  return lowest.valid() && static_cast<rlim_t>(lowest.get()) < limit.rlim_cur - reserve;
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

Result<ucred> peer_credentials(int socket) {
  ucred who{};
  socklen_t size = sizeof who;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0) return who;
  return errno_error(ErrorCode::kPeerGone, "peer credentials");
}

std::vector<UniqueFd> take_fds(msghdr& message) {
  std::vector<UniqueFd> fds;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
  return fds;
}

Result<UnixListener> UnixListener::create(const std::string& path, int type) {
  KVD_ASSIGN_OR_RETURN(const sockaddr_un address, unix_address(path));
  KVD_ASSIGN_OR_RETURN(const UniqueFd locked, lock(path));
  KVD_TRY(make_way(path, address, type));
  UniqueFd socket = new_socket(type);
  if (!socket.valid()) return errno_error(ErrorCode::kUnavailable, "socket for " + path);
  UnixListener listener(std::move(socket), path, type);
  KVD_TRY(listener.bind_and_listen(address));
  return listener;
}

Status UnixListener::check(const std::string& path, int type) {
  KVD_ASSIGN_OR_RETURN(const sockaddr_un address, unix_address(path));
  KVD_ASSIGN_OR_RETURN(const UniqueFd locked, lock(path));
  return make_way(path, address, type);
}

bool UnixListener::is_taken(const std::string& path, int type) {
  const auto address = unix_address(path);
  return address.ok() && answers(*address, type);
}

void UnixListener::remove_own(const std::string& path, int type) {
  const auto address = unix_address(path);
  if (!address.ok()) return;
  // Another thread may be between bind() and listen(). It will answer in a moment.
  constexpr int kTries = 50;
  for (int i = 0; i < kTries; ++i) {
    const UniqueFd probe = new_socket(type);
    if (::connect(probe.get(), generic(*address), sizeof *address) == 0) {
      const auto who = peer_credentials(probe.get());
      if (who.ok() && who->pid == ::getpid()) ::unlink(path.c_str());
      return;
    }
    if (errno != ECONNREFUSED) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

std::optional<UnixListener::FileId> UnixListener::file_at(const std::string& path) {
  struct statx facts {};
  constexpr unsigned kWanted = STATX_INO | STATX_BTIME;
  if (::statx(AT_FDCWD, path.c_str(), AT_SYMLINK_NOFOLLOW, kWanted, &facts) != 0) return {};
  FileId file{std::uint64_t{facts.stx_dev_major} << 32 | facts.stx_dev_minor, facts.stx_ino};
  if ((facts.stx_mask & STATX_BTIME) != 0) {
    file.born_s = facts.stx_btime.tv_sec;
    file.born_ns = facts.stx_btime.tv_nsec;
  }
  return file;
}

bool UnixListener::is_found() const { return file_ && file_at(path_) == file_; }

Result<bool> UnixListener::restore() {
  if (is_found()) return false;
  KVD_ASSIGN_OR_RETURN(UnixListener anew, create(path_, type_));
  file_.reset();  // before the numbers meet, or the end of this one would remove the new file
  std::swap(socket_, anew.socket_);
  std::swap(file_, anew.file_);
  std::swap(closer_, anew.closer_);
  return true;
}

Status UnixListener::bind_and_listen(const sockaddr_un& address) {
  // Accepted sockets inherit this before anything can be sent to them.
  const int off = 0;
  if (::setsockopt(fd(), SOL_SOCKET, SO_PASSRIGHTS, &off, sizeof off) != 0) {
    closer_ = std::make_shared<Closer>();
  }
  if (::bind(fd(), generic(address), sizeof address) != 0) {
    return errno_error(ErrorCode::kUnavailable, "cannot bind " + path_);
  }
  file_ = file_at(path_);
  // Nobody can connect before listen(), so there is no moment with the umask's mode.
  if (::chmod(path_.c_str(), kMode) != 0 || ::listen(fd(), kBacklog) != 0) {
    return errno_error(ErrorCode::kUnavailable, "cannot listen at " + path_);
  }
  return {};
}

UnixListener::~UnixListener() {
  if (!socket_.valid() || !file_) return;
  // Another daemon that holds the lock is about to replace the file, and needs no help.
  const auto locked = lock(path_);
  if (locked.ok() && is_found()) ::unlink(path_.c_str());
}

Result<std::optional<UniqueFd>> UnixListener::accept() {
  if (!more_than_the_reserve(fd())) {
    return make_error(ErrorCode::kUnavailable,
                      "nearly all file descriptors are in use: none for a connection at " + path_);
  }
  while (true) {
    UniqueFd peer(::accept4(fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (peer.valid()) return std::optional(std::move(peer));
    if (errno == EAGAIN || errno == EWOULDBLOCK) return std::optional<UniqueFd>();
    if (errno != EINTR && errno != ECONNABORTED) {
      return errno_error(ErrorCode::kUnavailable, "accept on " + path_);
    }
  }
}

}  // namespace kvd::transport
