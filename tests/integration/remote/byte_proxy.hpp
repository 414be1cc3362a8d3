#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "ipc/vocabulary/check.hpp"
#include "ipc/vocabulary/unique_fd.hpp"
#include "tests/support/redis_server.hpp"

namespace kvd::test {

/// Stands between a client and a server on Unix sockets, one connection at a time, and spoils what
/// the server says.
class ByteProxy {
 public:
  using Time = std::chrono::steady_clock::time_point;

  ByteProxy(std::string socket, std::string server)
      : socket_(std::move(socket)), server_(std::move(server)) {
    listener_ = UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un at{};
    at.sun_family = AF_UNIX;
    std::memcpy(at.sun_path, socket_.data(), socket_.size());
    KVD_CHECK(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&at), sizeof at) == 0 &&
                  ::listen(listener_.get(), 8) == 0,
              "no socket for the proxy");
    thread_ = std::thread([this] { run(); });
  }
  ~ByteProxy() {
    ends_ = true;
    thread_.join();
  }
  ByteProxy(const ByteProxy&) = delete;
  ByteProxy& operator=(const ByteProxy&) = delete;

  [[nodiscard]] std::string address() const { return "unix:" + socket_; }

  /// The server's words are late by this much.
  std::atomic<int> delay_ms{0};
  /// Bytes of the server that still pass before the connection ends; negative: all pass.
  std::atomic<long> cut_after{-1};
  /// Each byte of the server arrives as another one.
  std::atomic<bool> garbage{false};

 private:
  struct Piece {
    Time due;
    std::string bytes;
  };

  void run() {
    while (!ends_) {
      pollfd event{listener_.get(), POLLIN, 0};
      if (::poll(&event, 1, 20) <= 0) continue;
      const UniqueFd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      const UniqueFd server = dial_unix(server_);
      if (client.valid() && server.valid()) serve(client.get(), server.get());
    }
  }
  void serve(int client, int server) {
    std::deque<Piece> late;
    for (;;) {
      if (ends_) return;
      pollfd events[] = {{client, POLLIN, 0}, {server, POLLIN, 0}};
      (void)::poll(events, 2, late.empty() ? 20 : 1);
      if (events[0].revents != 0 && !pass(client, server)) return;
      if (events[1].revents != 0) {
        std::string bytes(65536, '\0');
        const ssize_t got = ::read(server, bytes.data(), bytes.size());
        if (got <= 0) return;
        bytes.resize(static_cast<std::size_t>(got));
        const auto due = std::chrono::steady_clock::now() + std::chrono::milliseconds(delay_ms);
        late.push_back({due, std::move(bytes)});
      }
      while (!late.empty() && late.front().due <= std::chrono::steady_clock::now()) {
        if (!deliver(client, std::move(late.front().bytes))) return;
        late.pop_front();
      }
    }
  }
  static bool pass(int from, int to) {
    std::string bytes(65536, '\0');
    const ssize_t got = ::read(from, bytes.data(), bytes.size());
    return got > 0 && send_all(to, bytes.substr(0, static_cast<std::size_t>(got)));
  }
  bool deliver(int client, std::string bytes) {
    if (garbage) {
      for (char& each : bytes) each = static_cast<char>(each ^ 0x15);
    }
    if (cut_after < 0) return send_all(client, bytes);
    const long left = cut_after;
    const bool cut = left <= std::ssize(bytes);
    if (cut) bytes.resize(static_cast<std::size_t>(left));
    cut_after = cut ? -1 : left - std::ssize(bytes);
    return send_all(client, bytes) && !cut;
  }
  static bool send_all(int to, const std::string& bytes) {
    for (std::size_t at = 0; at < bytes.size();) {
      const ssize_t sent = ::send(to, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      if (sent <= 0) return false;
      at += static_cast<std::size_t>(sent);
    }
    return true;
  }

  const std::string socket_, server_;
  UniqueFd listener_;
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

}  // namespace kvd::test
