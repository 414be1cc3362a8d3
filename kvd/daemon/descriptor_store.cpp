#include "kvd/daemon/descriptor_store.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

namespace kvd::daemon {
namespace {

constexpr int kFirstListed = 3;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

/// Sends the text, and a descriptor where there is one, to the socket that NOTIFY_SOCKET names.
bool tell(const std::string& text, std::optional<int> fd) {
  const std::string path = environment("NOTIFY_SOCKET");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) return false;
  std::memcpy(address.sun_path, path.data(), path.size());
  if (address.sun_path[0] == '@') address.sun_path[0] = '\0';  // of the abstract namespace
  const UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const timeval patience{2, 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  iovec part{const_cast<char*>(text.data()), text.size()};
  msghdr message{};
  message.msg_name = &address;
  message.msg_namelen = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (fd) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &*fd, sizeof(int));
  }
  return ::sendmsg(socket.get(), &message, MSG_NOSIGNAL) >= 0;
}

}  // namespace

std::size_t descriptors_kept() {
  if (environment("NOTIFY_SOCKET").empty()) return 0;
  return std::strtoul(environment("FDSTORE").c_str(), nullptr, 10);
}

std::map<std::string, UniqueFd> take_kept_descriptors() {
  const std::string pid = environment("LISTEN_PID");
  const std::string count = environment("LISTEN_FDS");
  std::string names = environment("LISTEN_FDNAMES") + ":";
  for (const char* name : {"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"}) ::unsetenv(name);
  std::map<std::string, UniqueFd> kept;
  if (pid.empty() || std::strtol(pid.c_str(), nullptr, 10) != ::getpid()) return kept;
  const auto all = static_cast<int>(std::strtol(count.c_str(), nullptr, 10));
  for (int fd = kFirstListed; fd < kFirstListed + all; ++fd) {
    if (::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) break;
    const std::size_t end = names.find(':');
    const std::string name = names.substr(0, end);
    names.erase(0, end == std::string::npos ? end : end + 1);
    kept.try_emplace(name, UniqueFd(fd));
  }
  return kept;
}

Status keep_descriptor(const std::string& name, int fd) {
  if (tell("FDSTORE=1\nFDPOLL=0\nFDNAME=" + name, fd)) return {};
  return make_error(ErrorCode::kUnavailable,
                    std::string("nobody keeps descriptors: ") + std::strerror(errno));
}

void drop_kept_descriptor(const std::string& name) {
  (void)tell("FDSTOREREMOVE=1\nFDNAME=" + name, std::nullopt);
}

}  // namespace kvd::daemon
