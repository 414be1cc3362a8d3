#include "kvd/daemon/base/descriptor_store.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
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

/// The number of kvd-holder's socket, which this process has inherited. None: it has not.
std::optional<int> inherited_socket() {
  constexpr std::string_view kPrefix = "fd:";
  const std::string place = environment("NOTIFY_SOCKET");
  if (!place.starts_with(kPrefix)) return std::nullopt;
  return static_cast<int>(std::strtol(place.c_str() + kPrefix.size(), nullptr, 10));
}

/// kvd ends with the holder, which keeps what kvd stores. A program between the two that changed
/// the user has cleared what the holder asked of the kernel.
void end_with(int holder) {
  ::fcntl(holder, F_SETFD, FD_CLOEXEC);
  const timeval patience{2, 0};
  ::setsockopt(holder, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  pollfd entry{holder, 0, 0};
  if (::poll(&entry, 1, 0) > 0) ::_exit(0);  // it had gone before
}

}  // namespace

bool tell_service_manager(std::string_view text, std::optional<int> fd, bool waits) {
  const std::optional<int> inherited = inherited_socket();
  const std::string path = environment("NOTIFY_SOCKET");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) return false;
  std::memcpy(address.sun_path, path.data(), path.size());
  if (address.sun_path[0] == '@') address.sun_path[0] = '\0';  // of the abstract namespace
  const UniqueFd socket(inherited ? -1 : ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const timeval patience{2, 0};
  iovec part{const_cast<char*>(text.data()), text.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!inherited) {
    ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    message.msg_name = &address;
    message.msg_namelen = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  }
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
  const int flags = MSG_NOSIGNAL | (waits ? 0 : MSG_DONTWAIT);
  return ::sendmsg(inherited.value_or(socket.get()), &message, flags) >= 0;
}

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
  const bool ours = !pid.empty() && std::strtol(pid.c_str(), nullptr, 10) == ::getpid();
  const std::optional<int> holder = inherited_socket();
  if (holder && ours) end_with(*holder);
  if (holder && !ours) ::unsetenv("NOTIFY_SOCKET");  // by now it may be the number of another
  if (!ours) return kept;
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
  if (tell_service_manager("FDSTORE=1\nFDPOLL=0\nFDNAME=" + name, fd, true)) return {};
  return make_error(ErrorCode::kUnavailable,
                    std::string("nobody keeps descriptors: ") + std::strerror(errno));
}

void drop_kept_descriptor(const std::string& name) {
  (void)tell_service_manager("FDSTOREREMOVE=1\nFDNAME=" + name, std::nullopt, true);
}

// The keeper of the descriptors closes this one when it receives it.
void wait_for_descriptor_store() {
  constexpr int kPatienceMs = 2000;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return;
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  if (!tell_service_manager("BARRIER=1", write_end.get(), true)) return;
  write_end.reset();
  pollfd closed{read_end.get(), 0, 0};
  (void)::poll(&closed, 1, kPatienceMs);
}

}  // namespace kvd::daemon
