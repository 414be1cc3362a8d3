#pragma once

#include <sys/epoll.h>

#include <array>
#include <cstdint>
#include <span>

#include "ipc/vocabulary/clock.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/unique_fd.hpp"

namespace kvd::daemon {

/// Frames that one peer may send before the others get their turn.
constexpr int kFramesATurn = 64;

/// The descriptors that the control thread waits for, each with what it stands for, and a timer of
/// its own. A descriptor is forgotten before it is closed: a copy of it may live on elsewhere.
/// Source: epoll(7).
/// Owner:  control thread.
class Poller {
 public:
  /// What a descriptor stands for.
  enum class Source : std::uint32_t {
    kInbox,
    kCopies,
    kCommands,
    kListener,
    kTimer,
    kPending,
    kPeer,
    kBell,
    kProcess,
    kDisk,
    kRemote,
  };
  struct Ready {
    Source source = Source::kInbox;
    std::uint32_t id = 0;  ///< an engine, a disk, or a connection that has not said all
  };

  /// Errors: Unavailable when out of descriptors.
  static Result<Poller> create();

  /// kTimer is ready after every `period`, until take_tick().
  [[nodiscard]] Status tick_every(Nanoseconds period);
  void take_tick();

  /// Errors: Unavailable when the kernel watches no more.
  [[nodiscard]] Status watch(Source source, std::uint32_t id, int fd,
                             std::uint32_t events = EPOLLIN);
  /// Sets whether wait() tells of a watched descriptor.
  void look_at(Source source, int fd, bool on);
  void forget(int fd);
  /// Waits up to `timeout`, or, if that is negative, for a tick at least; valid until the next
  /// call.
  [[nodiscard]] std::span<const Ready> wait(std::chrono::milliseconds timeout);

 private:
  Poller(UniqueFd epoll, UniqueFd timer) : epoll_(std::move(epoll)), timer_(std::move(timer)) {}

  UniqueFd epoll_;
  UniqueFd timer_;
  std::array<Ready, 64> ready_;
};

}  // namespace kvd::daemon
