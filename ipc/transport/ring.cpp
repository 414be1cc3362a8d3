#include "ipc/transport/ring.hpp"

#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "ipc/vocabulary/clock.hpp"
#include "ipc/vocabulary/this_process.hpp"
#include "ipc/wire/codec.hpp"

namespace kvd::transport {
namespace {

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Waits while `word` is 1, at most this long. False when the time is over.
bool futex_wait(std::atomic<std::uint32_t>& word, Nanoseconds at_most) {
  const timespec limit{at_most.count() / 1'000'000'000, at_most.count() % 1'000'000'000};
  return ::syscall(SYS_futex, &word, FUTEX_WAIT, 1, &limit, nullptr, 0) == 0 || errno != ETIMEDOUT;
}

void futex_wake(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

/// The engine's end: writes a command, then waits for the reply with its sequence.
class RingCommandClient final : public CommandClient {
 public:
  RingCommandClient(shm::RingMapping mapping, UniqueFd bell, Nanoseconds spin)
      : mapping_(std::move(mapping)),
        commands_(mapping_.pair().commands, mapping_.commands()),
        replies_(mapping_.pair().replies, mapping_.replies(), wire::kMaxCommandFrame),
        bell_(std::move(bell)),
        spin_(spin) {}

  Result<std::span<const std::byte>> call(std::span<const std::byte> frame, std::uint64_t sequence,
                                          Nanoseconds timeout, int watch) override {
    KVD_TRY(check_fork());
    const TimePoint deadline = clock_.now() + timeout;
    while (!commands_.write(frame)) {
      // Late means sent but not answered. A command that was never sent must not count as late.
      const Status status = check(deadline, watch);
      if (status.code() == ErrorCode::kDeadlineExceeded) return no_room();
      KVD_TRY(status);
      ::poll(nullptr, 0, kLookForRoomMs);
    }
    wake_daemon();
    return read_until(sequence, deadline, watch);
  }

  Status take_replies() override {
    KVD_TRY(check_fork());
    while (true) {
      KVD_ASSIGN_OR_RETURN(const auto reply, replies_.read());
      if (!reply) return {};
      pass(*reply);
    }
  }

  Status post(std::span<const std::byte> frame) override {
    KVD_TRY(check_fork());
    if (!commands_.write(frame)) {
      return make_error(ErrorCode::kWouldBlock, "kvd has not read the commands before this one");
    }
    return {};
  }

  Result<std::span<const std::byte>> await(std::uint64_t sequence, Nanoseconds timeout,
                                           int watch) override {
    KVD_TRY(check_fork());
    wake_daemon();
    return read_until(sequence, clock_.now() + timeout, watch);
  }

 private:
  /// Nobody wakes us for room: a lane is full only when the daemon has stopped reading.
  static constexpr int kLookForRoomMs = 2;
  /// A futex cannot be slept on together with a socket, so nobody sleeps longer than this without
  /// a look at whether the daemon hung up.
  static constexpr Nanoseconds kLookAgain = std::chrono::milliseconds(20);

  /// A forked child lacks the mapping, so it may touch nothing here.
  [[nodiscard]] Status check_fork() const {
    if (this_process() == owner_) return {};
    return make_error(ErrorCode::kPeerGone,
                      "this process was forked from the one that attached; attach anew here");
  }

  void wake_daemon() {
    if (commands_.take_sleeper()) ::eventfd_write(bell_.get(), 1);
  }

  Result<std::span<const std::byte>> read_until(std::uint64_t sequence, TimePoint deadline,
                                                int watch) {
    while (true) {
      KVD_ASSIGN_OR_RETURN(const auto reply, replies_.read());
      if (!reply) {
        KVD_TRY(wait(deadline, watch));
      } else if (wire::peek_reply_sequence(*reply) == sequence) {
        return *reply;
      } else {
        pass(*reply);
      }
    }
  }

  Status wait(TimePoint deadline, int watch) {
    const TimePoint until = std::min(deadline, clock_.now() + spin_);
    do {
      for (int i = 0; i < 32; ++i) {
        if (!replies_.empty()) return {};
        pause_cpu();
      }
      if (yields_) ::sched_yield();
    } while (clock_.now() < until);
    if (!replies_.fall_asleep()) return {};
    const Nanoseconds left = deadline - clock_.now();
    const bool woken = left > Nanoseconds(0) &&
                       futex_wait(mapping_.pair().replies.asleep, std::min(left, kLookAgain));
    replies_.wake_up();
    if (woken) return {};
    const Status status = check(deadline, watch);
    // A reply that came before the hang-up counts.
    return replies_.empty() ? status : Status();
  }

  [[nodiscard]] static Error no_room() {
    return make_error(ErrorCode::kUnavailable,
                      "kvd has stopped reading its commands; attach again when it runs");
  }

  /// Whether waiting makes sense still.
  Status check(TimePoint deadline, int watch) {
    pollfd socket{watch, POLLRDHUP, 0};
    if (watch >= 0 && ::poll(&socket, 1, 0) > 0) {
      return make_error(ErrorCode::kUnavailable, "kvd hung up; attach again when it runs");
    }
    if (clock_.now() < deadline) return {};
    return make_error(ErrorCode::kDeadlineExceeded, "no reply from kvd in time");
  }

  SteadyClock clock_;
  shm::RingMapping mapping_;
  shm::RingWriter commands_;
  shm::RingReader replies_;
  UniqueFd bell_;
  const bool yields_ = few_cpus();
  const Nanoseconds spin_;
  pid_t owner_ = this_process();
};

}  // namespace

bool few_cpus() {
  cpu_set_t ours;
  CPU_ZERO(&ours);
  return ::sched_getaffinity(0, sizeof ours, &ours) != 0 || CPU_COUNT(&ours) <= 2;
}

Nanoseconds default_spin() {
  return few_cpus() ? Nanoseconds(0) : Nanoseconds(std::chrono::microseconds(50));
}

Nanoseconds yielding_spin() {
  return few_cpus() ? Nanoseconds(std::chrono::microseconds(300)) : default_spin();
}

Result<UniqueFd> make_bell() {
  UniqueFd bell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (bell.valid()) return bell;
  return make_error(ErrorCode::kUnavailable, "no descriptor left for a bell: raise RLIMIT_NOFILE");
}

RingPort::RingPort(shm::RingMapping mapping, UniqueFd ring, UniqueFd bell)
    : mapping_(std::move(mapping)),
      commands_(mapping_.pair().commands, mapping_.commands(), wire::kMaxCommandFrame),
      replies_(mapping_.pair().replies, mapping_.replies()),
      ring_(std::move(ring)),
      bell_(std::move(bell)) {}

Result<RingPort> RingPort::create() {
  KVD_ASSIGN_OR_RETURN(auto ring, shm::RingMapping::create());
  KVD_ASSIGN_OR_RETURN(UniqueFd bell, make_bell());
  return RingPort(std::move(ring.first), std::move(ring.second), std::move(bell));
}

std::vector<int> RingPort::peer_fds() const { return {ring_.get(), bell_.get()}; }

void RingPort::close_peer_fds() { ring_ = UniqueFd(); }

Status RingPort::send(std::span<const std::byte> frame) {
  if (!replies_.write(frame)) {
    return make_error(ErrorCode::kPeerGone, "the engine does not read its replies");
  }
  if (replies_.take_sleeper()) futex_wake(mapping_.pair().replies.asleep);
  return {};
}

Result<std::unique_ptr<CommandClient>> ring_command_client(UniqueFd ring, UniqueFd bell,
                                                           Nanoseconds spin) {
  KVD_ASSIGN_OR_RETURN(shm::RingMapping mapping, shm::RingMapping::map(ring.get()));
  if (!bell.valid()) {
    return make_error(ErrorCode::kInvalidArgument, "the ring came without the daemon's bell");
  }
  return std::unique_ptr<CommandClient>(
      std::make_unique<RingCommandClient>(std::move(mapping), std::move(bell), spin));
}

}  // namespace kvd::transport
