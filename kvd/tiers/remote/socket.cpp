#include "kvd/tiers/remote/socket.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>

#include "ipc/vocabulary/errno_words.hpp"

namespace kvd::remote {

namespace {

constexpr std::string_view kUnix = "unix:";

Error unreachable(const std::string& address, const std::string& why) {
  return make_error(ErrorCode::kUnavailable,
                    address + ": " + why + "; start the server, or correct remote.servers");
}

struct HostPort {
  std::string host, port;
};

HostPort split(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos) return {};
  HostPort parts{address.substr(0, colon), address.substr(colon + 1)};
  if (parts.host.size() > 2 && parts.host.front() == '[' && parts.host.back() == ']') {
    parts.host = parts.host.substr(1, parts.host.size() - 2);
  }
  return parts;
}

Status connect_to(int fd, const sockaddr* to, socklen_t size, const std::string& address,
                  Nanoseconds patience) {
  if (::connect(fd, to, size) == 0) return {};
  if (errno != EINPROGRESS) return unreachable(address, errno_words(errno));
  pollfd event{fd, POLLOUT, 0};
  if (::poll(&event, 1, static_cast<int>(patience.count() / 1'000'000)) <= 0) {
    return unreachable(address, "no answer");
  }
  int error = 0;
  socklen_t length = sizeof error;
  (void)::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
  return error == 0 ? Status() : unreachable(address, errno_words(error));
}

Result<UniqueFd> dial_one(const addrinfo& to, const std::string& address, Nanoseconds patience) {
  UniqueFd fd(::socket(to.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return unreachable(address, errno_words(errno));
  KVD_TRY(connect_to(fd.get(), to.ai_addr, to.ai_addrlen, address, patience));
  const int one = 1;
  (void)::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return fd;
}

Result<UniqueFd> dial_unix(const std::string& address, Nanoseconds patience) {
  const std::string path = address.substr(kUnix.size());
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  std::memcpy(to.sun_path, path.data(), path.size());
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return unreachable(address, errno_words(errno));
  KVD_TRY(
      connect_to(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to, address, patience));
  return fd;
}

}  // namespace

Status check_address(const std::string& address) {
  const auto wrong = [&](const char* why) {
    return make_error(ErrorCode::kInvalidArgument,
                      "\"" + address + "\" " + why + ": write host:port or unix:/path");
  };
  if (address.starts_with(kUnix)) {
    const std::size_t size = address.size() - kUnix.size();
    if (address[kUnix.size()] != '/') return wrong("is no whole path");
    return size < sizeof(sockaddr_un::sun_path) ? Status() : wrong("has more than 107 letters");
  }
  const HostPort parts = split(address);
  if (parts.host.empty()) return wrong("has no host and port");
  const bool digits = !parts.port.empty() && parts.port.size() <= 5 &&
                      parts.port.find_first_not_of("0123456789") == std::string::npos;
  if (!digits || std::stoi(parts.port) < 1 || std::stoi(parts.port) > 65535) {
    return wrong("has no port from 1 to 65535");
  }
  return {};
}

Result<UniqueFd> dial(const std::string& address, Nanoseconds patience) {
  if (address.starts_with(kUnix)) return dial_unix(address, patience);
  const HostPort parts = split(address);
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(parts.host.c_str(), parts.port.c_str(), &wanted, &found);
  if (failed != 0) return unreachable(address, ::gai_strerror(failed));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> all(found, &::freeaddrinfo);
  std::int64_t count = 0;
  for (const addrinfo* at = all.get(); at != nullptr; at = at->ai_next) ++count;
  Result<UniqueFd> fd = dial_one(*all, address, patience / count);
  for (const addrinfo* at = all->ai_next; at != nullptr && !fd.ok(); at = at->ai_next) {
    fd = dial_one(*at, address, patience / count);
  }
  return fd;
}

}  // namespace kvd::remote
