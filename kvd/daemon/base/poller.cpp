#include "kvd/daemon/base/poller.hpp"

#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace kvd::daemon {

namespace {

epoll_event entry_of(Poller::Source source, std::uint32_t id, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = (std::uint64_t{static_cast<std::uint32_t>(source)} << 32) | id;
  return event;
}

}  // namespace

Result<Poller> Poller::create() {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  UniqueFd timer(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!epoll.valid() || !timer.valid()) {
    return make_error(ErrorCode::kUnavailable, "no file descriptor left: raise RLIMIT_NOFILE");
  }
  return Poller(std::move(epoll), std::move(timer));
}

Status Poller::tick_every(Nanoseconds period) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(period);
  const timespec every{seconds.count(), (period - seconds).count()};
  const itimerspec spec{every, every};
  ::timerfd_settime(timer_.get(), 0, &spec, nullptr);
  return watch(Source::kTimer, 0, timer_.get());
}

void Poller::take_tick() {
  std::uint64_t expirations = 0;
  (void)!::read(timer_.get(), &expirations, sizeof(expirations));
}

Status Poller::watch(Source source, std::uint32_t id, int fd, std::uint32_t events) {
  epoll_event event = entry_of(source, id, events);
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return make_error(ErrorCode::kUnavailable,
                      std::string("cannot watch one more descriptor: ") + std::strerror(errno) +
                          "; raise fs.epoll.max_user_watches, or close sessions");
  }
  return {};
}

void Poller::look_at(Source source, int fd, bool on) {
  epoll_event event = entry_of(source, 0, on ? std::uint32_t{EPOLLIN} : 0u);
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void Poller::forget(int fd) { ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

std::span<const Poller::Ready> Poller::wait(std::chrono::milliseconds timeout) {
  epoll_event events[64];
  const int count = ::epoll_wait(epoll_.get(), events, static_cast<int>(ready_.size()),
                                 static_cast<int>(timeout.count()));
  for (int i = 0; i < count; ++i) {
    const std::uint64_t data = events[i].data.u64;
    ready_[static_cast<std::size_t>(i)] = {static_cast<Source>(data >> 32),
                                           static_cast<std::uint32_t>(data)};
  }
  return {ready_.data(), static_cast<std::size_t>(count < 0 ? 0 : count)};
}

}  // namespace kvd::daemon
