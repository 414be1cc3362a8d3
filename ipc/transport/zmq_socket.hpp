#pragma once

#include <zmq.h>

#include <cerrno>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "ipc/vocabulary/result.hpp"

/// Owners for libzmq's handles. Never included by a header others see.
namespace kvd::transport {

inline Error zmq_error(ErrorCode code, std::string_view what) {
  return make_error(code, std::string(what) + ": " + zmq_strerror(zmq_errno()));
}

/// A context with one socket in it.
class ZmqSocket {
 public:
  /// Errors: Unavailable when out of fds or threads.
  static Result<ZmqSocket> create(int type) {
    void* context = zmq_ctx_new();
    if (context == nullptr) return zmq_error(ErrorCode::kUnavailable, "ZeroMQ context");
    // libzmq starts its thread with the first socket; signals stay with kvd's own threads.
    void* socket = zmq_socket(context, type);
    if (socket == nullptr) {
      Error error = zmq_error(ErrorCode::kUnavailable, "ZeroMQ socket");
      zmq_ctx_term(context);
      return error;
    }
    return ZmqSocket(context, socket);
  }
  ZmqSocket(ZmqSocket&& other) noexcept
      : context_(std::exchange(other.context_, nullptr)),
        socket_(std::exchange(other.socket_, nullptr)) {}
  ZmqSocket& operator=(ZmqSocket&&) = delete;
  ~ZmqSocket() {
    if (socket_ == nullptr) return;
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }

  [[nodiscard]] void* get() const { return socket_; }

  /// Gives up both handles without touching them; a forked child must.
  void forget() { context_ = socket_ = nullptr; }

  template <class T>
  Status set(int option, const T& value) {
    return set_bytes(option, &value, sizeof value);
  }
  Status set(int option, std::string_view text) {
    return set_bytes(option, text.data(), text.size());
  }

 private:
  ZmqSocket(void* context, void* socket) : context_(context), socket_(socket) {}

  Status set_bytes(int option, const void* value, std::size_t size) {
    if (zmq_setsockopt(socket_, option, value, size) == 0) return {};
    return zmq_error(ErrorCode::kInternal, "ZeroMQ option " + std::to_string(option));
  }

  void* context_ = nullptr;
  void* socket_ = nullptr;
};

/// A message to receive into.
class ZmqMessage {
 public:
  ZmqMessage() { zmq_msg_init(&message_); }
  ZmqMessage(const ZmqMessage&) = delete;
  ZmqMessage& operator=(const ZmqMessage&) = delete;
  ~ZmqMessage() { zmq_msg_close(&message_); }

  /// False when none waits (or the socket is unusable).
  bool receive(void* socket) {
    int got = -1;
    do {
      got = zmq_msg_recv(&message_, socket, ZMQ_DONTWAIT);
    } while (got < 0 && zmq_errno() == EINTR);
    return got >= 0;
  }

  [[nodiscard]] std::span<const std::byte> bytes() const {
    auto* message = const_cast<zmq_msg_t*>(&message_);  // libzmq's getters take no const
    return {static_cast<const std::byte*>(zmq_msg_data(message)), zmq_msg_size(message)};
  }
  [[nodiscard]] bool more() const { return zmq_msg_more(&message_) != 0; }

 private:
  zmq_msg_t message_;
};

}  // namespace kvd::transport
