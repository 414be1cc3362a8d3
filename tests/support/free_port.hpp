#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "ipc/vocabulary/check.hpp"
#include "ipc/vocabulary/unique_fd.hpp"

namespace kvd::test {

/// Whether nobody listens on the loopback port now.
[[nodiscard]] inline bool port_is_free(std::uint16_t port) {
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return ::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
}

/// An abstract socket name, free again when its holder ends; invalid: another process has it.
/// tests/support/python/kvd_process.py claims ports by the same names.
[[nodiscard]] inline UniqueFd claimed_port(std::uint16_t port) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const std::string name = "kvd-test-port-" + std::to_string(port);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // begins with 0: in no folder
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) socket.reset();
  return socket;
}

/// A loopback port that no other test gets until this process ends. A port that was only free when
/// it was looked at may have another test's daemon behind it by the time it is used, and that one
/// answers too. It lies below the ports that the kernel gives to connections. Any thread may call.
[[nodiscard]] inline std::uint16_t free_port() {
  constexpr int kFirst = 20000;
  constexpr int kCount = 12000;
  static std::mutex mutex;
  static std::vector<UniqueFd> claims;
  static int next = static_cast<int>(::getpid()) * 16 % kCount;
  const std::scoped_lock lock(mutex);
  for (int tries = 0; tries < kCount; ++tries) {
    next = (next + 1) % kCount;
    const auto port = static_cast<std::uint16_t>(kFirst + next);
    UniqueFd claim = claimed_port(port);
    if (!claim.valid() || !port_is_free(port)) continue;
    claims.push_back(std::move(claim));
    return port;
  }
  KVD_CHECK(false, "no free port");
  return 0;
}

}  // namespace kvd::test
