#include "ipc/transport/ring.hpp"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "ipc/vocabulary/clock.hpp"
#include "ipc/wire/codec.hpp"

namespace kvd::transport {
namespace {

Result<UniqueFd> make_bell() {
  UniqueFd bell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (bell.valid()) return bell;
  return make_error(ErrorCode::kUnavailable, "no descriptor left for a ring: raise RLIMIT_NOFILE");
}

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// The engine's end: writes a command, then waits for the reply with its sequence.
class RingCommandClient final : public CommandClient {
 public:
  RingCommandClient(shm::RingMapping mapping, UniqueFd daemon_bell, UniqueFd own_bell,
                    Nanoseconds spin)
      : mapping_(std::move(mapping)),
        commands_(mapping_.pair().commands, mapping_.commands()),
        replies_(mapping_.pair().replies, mapping_.replies(), wire::kMaxCommandFrame),
        daemon_bell_(std::move(daemon_bell)),
        own_bell_(std::move(own_bell)),
        spin_(spin) {}

  Result<std::span<const std::byte>> call(std::span<const std::byte> frame, std::uint64_t sequence,
                                          Nanoseconds timeout, int watch) override {
    // The mapping is absent in a forked child: nothing here may be touched there.
    if (::getpid() != owner_) {
      return make_error(ErrorCode::kPeerGone,
                        "this process was forked from the one that attached; attach anew here");
    }
    const TimePoint deadline = clock_.now() + timeout;
    while (!commands_.write(frame)) KVD_TRY(sleep(deadline, watch, kLookForRoom));
    if (commands_.take_sleeper()) ::eventfd_write(daemon_bell_.get(), 1);
    while (true) {
      KVD_ASSIGN_OR_RETURN(const auto reply, replies_.read());
      if (!reply) {
        KVD_TRY(wait(deadline, watch));
      } else if (wire::peek_reply_sequence(*reply) == sequence) {
        return *reply;
      }
    }
  }

 private:
  /// Nobody rings for room: a lane is full only when the daemon has stopped reading.
  static constexpr Nanoseconds kLookForRoom = std::chrono::milliseconds(5);

  Status wait(TimePoint deadline, int watch) {
    if (spin_.count() > 0) {
      const TimePoint until = std::min(deadline, clock_.now() + spin_);
      do {
        for (int i = 0; i < 32; ++i) {
          if (!replies_.empty()) return {};
          pause_cpu();
        }
      } while (clock_.now() < until);
    }
    if (!replies_.fall_asleep()) return {};
    const Status slept = sleep(deadline, watch, deadline - clock_.now());
    replies_.wake_up();
    return slept;
  }

  /// Until the bell rings, `at_most` is over, or the daemon hangs up.
  Status sleep(TimePoint deadline, int watch, Nanoseconds at_most) {
    const Nanoseconds left = deadline - clock_.now();
    if (left <= Nanoseconds(0)) {
      return make_error(ErrorCode::kDeadlineExceeded, "no reply from kvd in time");
    }
    pollfd items[] = {{own_bell_.get(), POLLIN, 0}, {watch, POLLRDHUP, 0}};
    const Nanoseconds span = std::clamp(at_most, Nanoseconds(0), left);
    const timespec limit{span.count() / 1'000'000'000, span.count() % 1'000'000'000};
    (void)::ppoll(items, watch < 0 ? 1 : 2, &limit, nullptr);
    eventfd_t rings = 0;
    if (items[0].revents != 0) ::eventfd_read(own_bell_.get(), &rings);
    // A reply that came before the hang-up still counts.
    if (items[1].revents != 0 && replies_.empty()) {
      return make_error(ErrorCode::kUnavailable, "kvd hung up; attach again when it runs");
    }
    return {};
  }

  SteadyClock clock_;
  shm::RingMapping mapping_;
  shm::RingWriter commands_;
  shm::RingReader replies_;
  UniqueFd daemon_bell_;
  UniqueFd own_bell_;
  Nanoseconds spin_;
  pid_t owner_ = ::getpid();
};

}  // namespace

Nanoseconds default_spin() {
  cpu_set_t ours;
  CPU_ZERO(&ours);
  const bool known = ::sched_getaffinity(0, sizeof ours, &ours) == 0;
  return known && CPU_COUNT(&ours) > 2 ? std::chrono::microseconds(50) : Nanoseconds(0);
}

RingPort::RingPort(shm::RingMapping mapping, UniqueFd ring, UniqueFd bell, UniqueFd peer_bell)
    : mapping_(std::move(mapping)),
      commands_(mapping_.pair().commands, mapping_.commands(), wire::kMaxCommandFrame),
      replies_(mapping_.pair().replies, mapping_.replies()),
      ring_(std::move(ring)),
      bell_(std::move(bell)),
      peer_bell_(std::move(peer_bell)) {}

Result<RingPort> RingPort::create() {
  KVD_ASSIGN_OR_RETURN(auto ring, shm::RingMapping::create());
  KVD_ASSIGN_OR_RETURN(UniqueFd bell, make_bell());
  KVD_ASSIGN_OR_RETURN(UniqueFd peer_bell, make_bell());
  return RingPort(std::move(ring.first), std::move(ring.second), std::move(bell),
                  std::move(peer_bell));
}

std::vector<int> RingPort::peer_fds() const { return {ring_.get(), bell_.get(), peer_bell_.get()}; }

void RingPort::close_peer_fds() { ring_ = UniqueFd(); }

void RingPort::quiet_bell() {
  eventfd_t rings = 0;
  ::eventfd_read(bell_.get(), &rings);
}

Status RingPort::send(std::span<const std::byte> frame) {
  if (!replies_.write(frame)) {
    return make_error(ErrorCode::kPeerGone, "the engine does not read its replies");
  }
  if (replies_.take_sleeper()) ::eventfd_write(peer_bell_.get(), 1);
  return {};
}

Result<std::unique_ptr<CommandClient>> ring_command_client(UniqueFd ring, UniqueFd daemon_bell,
                                                           UniqueFd own_bell, Nanoseconds spin) {
  KVD_ASSIGN_OR_RETURN(shm::RingMapping mapping, shm::RingMapping::map(ring.get()));
  if (!daemon_bell.valid() || !own_bell.valid()) {
    return make_error(ErrorCode::kInvalidArgument, "the ring came without its bells");
  }
  return std::unique_ptr<CommandClient>(std::make_unique<RingCommandClient>(
      std::move(mapping), std::move(daemon_bell), std::move(own_bell), spin));
}

}  // namespace kvd::transport
