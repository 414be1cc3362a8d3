#include <unistd.h>

#include <algorithm>

#include "ipc/transport/command_client.hpp"
#include "ipc/transport/zmq_socket.hpp"
#include "ipc/vocabulary/clock.hpp"
#include "ipc/vocabulary/this_process.hpp"
#include "ipc/wire/codec.hpp"

namespace kvd::transport {
namespace {

constexpr int kQueueLimit = 64;

class ZmqCommandClient final : public CommandClient {
 public:
  explicit ZmqCommandClient(ZmqSocket socket) : socket_(std::move(socket)) {}
  // libzmq's thread does not exist in a forked child: closing there would hang.
  ~ZmqCommandClient() override {
    if (forked()) socket_.forget();
  }

  Result<std::span<const std::byte>> call(std::span<const std::byte> frame, std::uint64_t sequence,
                                          Nanoseconds timeout, int watch) override {
    KVD_TRY(check_fork());
    const TimePoint deadline = clock_.now() + timeout;
    KVD_TRY(send(frame, deadline, watch));
    return read_until(sequence, deadline, watch);
  }

  Status take_replies() override {
    KVD_TRY(check_fork());
    while (reply_.receive(socket_.get())) (void)is_whole_reply(0);  // no command has that number
    return {};
  }

  Status post(std::span<const std::byte> frame) override {
    KVD_TRY(check_fork());
    while (zmq_send(socket_.get(), frame.data(), frame.size(), ZMQ_DONTWAIT) < 0) {
      if (zmq_errno() == EINTR) continue;
      if (zmq_errno() != EAGAIN) return zmq_error(ErrorCode::kInternal, "sending a command");
      return make_error(ErrorCode::kWouldBlock, "kvd has not taken the commands before this one");
    }
    return {};
  }

  Result<std::span<const std::byte>> await(std::uint64_t sequence, Nanoseconds timeout,
                                           int watch) override {
    KVD_TRY(check_fork());
    return read_until(sequence, clock_.now() + timeout, watch);
  }

 private:
  [[nodiscard]] bool forked() const { return this_process() != owner_; }

  [[nodiscard]] Status check_fork() const {
    if (!forked()) return {};
    return make_error(ErrorCode::kPeerGone,
                      "this process was forked from the one that attached; attach anew here");
  }

  Result<std::span<const std::byte>> read_until(std::uint64_t sequence, TimePoint deadline,
                                                int watch) {
    while (true) {
      while (reply_.receive(socket_.get())) {
        if (is_whole_reply(sequence)) return reply_.bytes();
      }
      KVD_TRY(wait_for(ZMQ_POLLIN, deadline, watch));
    }
  }

  Status send(std::span<const std::byte> frame, TimePoint deadline, int watch) {
    while (zmq_send(socket_.get(), frame.data(), frame.size(), ZMQ_DONTWAIT) < 0) {
      if (zmq_errno() == EINTR) continue;
      if (zmq_errno() != EAGAIN) return zmq_error(ErrorCode::kInternal, "sending a command");
      const Status ready = wait_for(ZMQ_POLLOUT, deadline, watch);
      if (ready.code() == ErrorCode::kDeadlineExceeded) return not_connected(watch);
      KVD_TRY(ready);
    }
    return {};
  }

  /// Waits for the socket while the attach connection stands.
  Status wait_for(short events, TimePoint deadline, int watch) {
    const Nanoseconds left = std::max(Nanoseconds(0), deadline - clock_.now());
    // Rounded up: rounding down would spin through the last millisecond.
    const auto milliseconds = static_cast<long>((left.count() + 999'999) / 1'000'000);
    zmq_pollitem_t items[] = {{socket_.get(), -1, events, 0}, {nullptr, watch, ZMQ_POLLERR, 0}};
    const int ready = zmq_poll(items, watch < 0 ? 1 : 2, milliseconds);
    if (ready < 0 && zmq_errno() != EINTR) return zmq_error(ErrorCode::kInternal, "zmq_poll");
    // A reply that came before the hang-up still counts.
    if (ready > 0 && items[0].revents == 0) return no_daemon();
    if (ready == 0 && left.count() == 0) {
      return make_error(ErrorCode::kDeadlineExceeded, "no reply from kvd in time");
    }
    return {};
  }

  [[nodiscard]] static Error no_daemon() {
    return make_error(ErrorCode::kUnavailable, "kvd is not connected; attach again when it runs");
  }

  /// A daemon that holds the attach connection is there and will take this connection.
  [[nodiscard]] static Error not_connected(int watch) {
    if (watch < 0) return no_daemon();
    return make_error(ErrorCode::kWouldBlock, "kvd has not taken the connection for commands yet");
  }

  /// False for a reply nobody waits for here. Parts after the first belong to no reply of ours.
  bool is_whole_reply(std::uint64_t sequence) {
    const bool ours = wire::peek_reply_sequence(reply_.bytes()) == sequence;
    if (!ours && !reply_.more()) pass(reply_.bytes());
    if (!reply_.more()) return ours;
    while (reply_.more() && reply_.receive(socket_.get())) continue;
    return false;
  }

  SteadyClock clock_;
  ZmqSocket socket_;
  ZmqMessage reply_;
  pid_t owner_ = this_process();
};

Status configure(ZmqSocket& socket) {
  KVD_TRY(socket.set(ZMQ_LINGER, 0));
  // Sends only over a standing connection: otherwise commands pile up for a daemon that is gone.
  KVD_TRY(socket.set(ZMQ_IMMEDIATE, 1));
  KVD_TRY(socket.set(ZMQ_SNDHWM, kQueueLimit));
  KVD_TRY(socket.set(ZMQ_RCVHWM, kQueueLimit));
  return socket.set(ZMQ_MAXMSGSIZE, std::int64_t{wire::kMaxCommandFrame});
}

}  // namespace

Result<std::unique_ptr<CommandClient>> zmq_command_client(const std::string& endpoint) {
  if (!endpoint.starts_with("ipc://")) {
    return make_error(ErrorCode::kInvalidArgument, "command endpoint is not ipc://PATH");
  }
  KVD_ASSIGN_OR_RETURN(ZmqSocket socket, ZmqSocket::create(ZMQ_DEALER));
  KVD_TRY(configure(socket));
  if (zmq_connect(socket.get(), endpoint.c_str()) != 0) {
    return zmq_error(ErrorCode::kInvalidArgument, "command endpoint " + endpoint);
  }
  return std::unique_ptr<CommandClient>(std::make_unique<ZmqCommandClient>(std::move(socket)));
}

}  // namespace kvd::transport
