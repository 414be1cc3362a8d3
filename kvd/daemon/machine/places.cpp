#include "kvd/daemon/machine/places.hpp"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "ipc/transport/unix_socket.hpp"
#include "ipc/vocabulary/unique_fd.hpp"
#include "kvd/daemon/base/log.hpp"
#include "kvd/daemon/machine/admin_token.hpp"
#include "kvd/daemon/machine/disk_names.hpp"

namespace kvd::daemon {
namespace {

constexpr Nanoseconds kPause = std::chrono::milliseconds(10);
/// The pause between two looks at a socket; a kvd that listens there notices each of them.
constexpr Nanoseconds kLongPause = std::chrono::milliseconds(100);

union AnyAddress {
  sockaddr any;
  sockaddr_in v4;
  sockaddr_in6 v6;
};

/// `text` is an address: the configuration refuses names.
AnyAddress address_of(const std::string& text, std::uint16_t port) {
  AnyAddress address{};
  if (::inet_pton(AF_INET6, text.c_str(), &address.v6.sin6_addr) == 1) {
    address.v6.sin6_family = AF_INET6;
    address.v6.sin6_port = htons(port);
    return address;
  }
  address = {};
  address.v4.sin_family = AF_INET;
  address.v4.sin_port = htons(port);
  (void)::inet_pton(AF_INET, text.c_str(), &address.v4.sin_addr);
  return address;
}

/// Whether nobody listens there. It does not listen itself, as a client would take it for kvd.
/// errno says why not.
bool is_free(const AnyAddress& at) {
  const UniqueFd socket(::socket(at.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  // Bound with the options of the later listener, so that old connections are no hindrance.
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const socklen_t size = at.any.sa_family == AF_INET6 ? sizeof at.v6 : sizeof at.v4;
  return ::bind(socket.get(), &at.any, size) == 0;
}

Error cannot_listen(const std::string& address, std::uint16_t port, const std::string& table,
                    int error) {
  return make_error(ErrorCode::kUnavailable,
                    "cannot listen at " + address + ", port " + std::to_string(port) + ": " +
                        std::strerror(error) + "; choose another port (" + table +
                        ".port), or stop the process that listens there");
}

Status check_port(const std::string& address, std::uint16_t port, const std::string& table,
                  const Clock& clock) {
  if (address.empty()) return {};
  const AnyAddress at = address_of(address, port);
  const TimePoint patience = clock.now() + kPlacePatience;
  for (bool told = false; !is_free(at); told = true) {
    const int error = errno;
    if (error != EADDRINUSE || clock.now() >= patience) {
      return cannot_listen(address, port, table, error);
    }
    if (!told) {
      log_info("port " + std::to_string(port) +
               " is in use: waiting for a kvd-admin that may be about to end");
    }
    std::this_thread::sleep_for(kPause);
  }
  return {};
}

Status check_socket(const std::string& path, int type, const Clock& clock) {
  const TimePoint patience = clock.now() + kPlacePatience;
  for (bool told = false; transport::UnixListener::is_taken(path, type); told = true) {
    if (clock.now() >= patience) break;
    if (!told) {
      log_info("a process listens at " + path + ": waiting for a kvd that may be about to end");
    }
    std::this_thread::sleep_for(kLongPause);
  }
  return transport::UnixListener::check(path, type);
}

}  // namespace

// Only the last folder is ours to make. Whoever may enter it may attach.
Status make_runtime_dir(const Config& config) {
  if (::mkdir(config.runtime_dir.c_str(), 0755) == 0 || errno == EEXIST) return {};
  return make_error(ErrorCode::kUnavailable, "cannot make the folder " + config.runtime_dir +
                                                 ": set paths.runtime_dir to one that can be");
}

Status check_places(const Config& config, const Clock& clock) {
  KVD_TRY(make_runtime_dir(config));
  KVD_TRY(check_socket(config.attach_socket, SOCK_SEQPACKET, clock));
  KVD_TRY(check_socket(config.command_socket, SOCK_STREAM, clock));
  if (!config.admin_address.empty() || !config.metrics_address.empty()) {
    KVD_TRY(load_or_make_token(config.token_file));
  }
  if (!config.disk.path.empty()) {
    // A fault that may pass by itself is no reason to stop: Disks waits for it.
    const auto names = disk_names(config.disk.path);
    if (!names.ok() && names.error().code != ErrorCode::kUnavailable) return names.error();
  }
  KVD_TRY(check_port(config.admin_address, config.admin_port, "admin", clock));
  return check_port(config.metrics_address, config.metrics_port, "metrics", clock);
}

}  // namespace kvd::daemon
