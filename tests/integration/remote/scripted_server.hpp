#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "ipc/vocabulary/check.hpp"
#include "ipc/vocabulary/unique_fd.hpp"
#include "tests/support/patience.hpp"

namespace kvd::test {

/// A server on a Unix socket that says what the test says, and reads when it does.
class ScriptedServer {
 public:
  explicit ScriptedServer(std::string socket) : socket_(std::move(socket)) {
    listener_ = UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un at{};
    at.sun_family = AF_UNIX;
    std::memcpy(at.sun_path, socket_.data(), socket_.size());
    KVD_CHECK(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&at), sizeof at) == 0 &&
                  ::listen(listener_.get(), 1) == 0,
              "no socket for the server");
  }
  [[nodiscard]] std::string address() const { return "unix:" + socket_; }

  /// Takes a connection, and answers as a server that is well does at first.
  void greet() {
    ASSERT_TRUE(readable(listener_.get()));
    client_ = UniqueFd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    read_until("PERSIST");
    say("$-1\r\n");
  }
  /// Reads a little at a time, until these words have come.
  void read_until(std::string_view words) {
    std::string all;
    while (all.find(words) == std::string::npos) {
      char bytes[64];
      ASSERT_TRUE(readable(client_.get())) << all;
      const ssize_t got = ::read(client_.get(), bytes, sizeof bytes);
      ASSERT_GT(got, 0) << all;
      all.append(bytes, static_cast<std::size_t>(got));
    }
  }
  void say(std::string_view bytes) const {
    (void)::send(client_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }

 private:
  static bool readable(int fd) {
    pollfd event{fd, POLLIN, 0};
    const auto patience = std::chrono::duration_cast<std::chrono::milliseconds>(kPatience);
    return ::poll(&event, 1, static_cast<int>(patience.count())) == 1;
  }

  const std::string socket_;
  UniqueFd listener_, client_;
};

}  // namespace kvd::test
