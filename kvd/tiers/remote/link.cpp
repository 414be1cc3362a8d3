#include "kvd/tiers/remote/link.hpp"

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "ipc/vocabulary/errno_words.hpp"
#include "kvd/tiers/remote/socket.hpp"

namespace kvd::remote {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// A server that says nothing for so long, while something is under way, is off.
constexpr Nanoseconds kLate = milliseconds(700);
/// The same where it goes on saying a little, but no reply is whole.
constexpr Nanoseconds kSlow = seconds(20);
constexpr Nanoseconds kDialTime = milliseconds(700);
constexpr Nanoseconds kFirstPause = milliseconds(200), kLongestPause = seconds(4);
/// An idle connection is tried so often.
constexpr Nanoseconds kIdle = seconds(1);
constexpr Nanoseconds kStopTime = seconds(1);
/// Replies that are awaited at a time: enough to keep a connection busy.
constexpr std::size_t kMostFlights = 16;
/// Values that are sent before the server has taken them.
constexpr std::size_t kMostPuts = 8;
/// Digests that a find asks for by one command.
constexpr std::size_t kFindGroup = 32;
/// Requests that are not over, by priority.
constexpr std::size_t kMostQueued[] = {256, 1024, 64};
constexpr std::string_view kProbe = "kvd1:probe";

std::size_t priority(Request::Kind kind) {
  if (kind == Request::Kind::kGet) return 1;
  return kind == Request::Kind::kPut ? 2 : 0;
}

iovec part_of(const void* data, std::size_t size) { return {const_cast<void*>(data), size}; }

}  // namespace

// ---- asked from other threads ----

Result<std::shared_ptr<Link>> Link::start(Setup setup) {
  KVD_ASSIGN_OR_RETURN(disk::EventFd wake, disk::EventFd::make());
  std::shared_ptr<Link> link(new Link(std::move(setup), std::move(wake)));
  link->status_.server = link->setup_.address;
  link->status_.why = make_error(ErrorCode::kUnavailable, "it was not reached yet");
  std::thread thread([link] { link->run(); });
  ::pthread_setname_np(thread.native_handle(), "kvd-remote");
  thread.detach();  // stop() waits for its end, though not for the resolver
  return link;
}

void Link::add(Request request) {
  std::unique_lock lock(mutex_);
  const std::size_t kind = priority(request.kind);
  const bool closed = !status_.on;
  if (!closed && queued_[kind] < kMostQueued[kind]) {
    ++queued_[kind];
    incoming_.push_back(std::move(request));
    lock.unlock();
    return wake_.signal();
  }
  lock.unlock();
  setup_.answer({setup_.number, request.kind, request.ticket,
                 closed ? disk::Fault::kClosed : disk::Fault::kBusy,
                 std::vector<bool>(request.digests.size())});
}

ServerStatus Link::status() const {
  const std::lock_guard lock(mutex_);
  ServerStatus status = status_;
  status.waiting = static_cast<std::uint32_t>(queued_[0] + queued_[1] + queued_[2]);
  return status;
}

void Link::end() {
  ending_.ask();
  wake_.signal();
}

void Link::stop() {
  end();
  ending_.wait(kStopTime);
}

// ---- the thread ----

void Link::run() {
  while (!ending_.asked()) turn();
  fail(make_error(ErrorCode::kUnavailable, "kvd ends"));
  ending_.done();
}

void Link::turn() {
  if (!fd_.valid() && setup_.clock->now() >= next_try_) connect();
  take_incoming();
  send();
  sum_ahead();
  wait();
  if (fd_.valid()) receive();
  expire();
}

void Link::connect() {
  ending_.dials(true);
  Result<UniqueFd> fd = dial(setup_.address, kDialTime);
  ending_.dials(false);
  if (!fd.ok()) return fail(fd.error());
  fd_ = std::move(*fd);
  state_ = State::kTrying;
  progress_ = replied_ = setup_.clock->now();
  say_hello();
}

// The probe tells what would fail later: no password, a cluster, a replica, a server too old.
void Link::say_hello() {
  Flight hello;
  hello.request.kind = Request::Kind::kHello;
  hello.since = setup_.clock->now();
  hello.left = setup_.password.empty() ? 1 : 2;
  if (hello.left == 2) add_command(sending_.head, {"AUTH", setup_.password});
  add_command(sending_.head, {"GETEX", kProbe, "PERSIST"});
  sending_.parts = {part_of(sending_.head.data(), sending_.head.size())};
  flights_.push_back(std::move(hello));
}

void Link::take_incoming() {
  std::vector<Request> incoming;
  {
    const std::lock_guard lock(mutex_);
    incoming.swap(incoming_);
  }
  for (Request& request : incoming) {
    if (state_ != State::kOn) {
      answer(request, disk::Fault::kClosed, std::vector<bool>(request.digests.size()));
      continue;
    }
    const std::size_t kind = priority(request.kind);
    if (kind == 2 && setup_.clock->now() < no_writes_before_) {
      answer(request, disk::Fault::kFull);
      continue;
    }
    Flight flight;
    flight.request = std::move(request);
    ready_[kind].push_back(std::move(flight));
  }
}

void Link::wait() {
  const TimePoint now = setup_.clock->now();
  const TimePoint until = !fd_.valid()       ? next_try_
                          : flights_.empty() ? progress_ + kIdle
                                             : std::min(now + milliseconds(100), progress_ + kLate);
  const auto patience = std::clamp<std::int64_t>((until - now).count() / 1'000'000 + 1, 0, 1000);
  pollfd events[] = {{wake_.get(), POLLIN, 0},
                     {fd_.get(), static_cast<short>(POLLIN | (is_sending() ? POLLOUT : 0)), 0}};
  (void)::poll(events, fd_.valid() ? 2 : 1, static_cast<int>(patience));
  if ((events[0].revents & POLLIN) != 0) wake_.drain();
}

void Link::expire() {
  const TimePoint now = setup_.clock->now();
  for (std::deque<Flight>& ready : ready_) {
    std::erase_if(ready, [&](const Flight& flight) {
      const Request& late = flight.request;
      if (late.deadline > now) return false;
      if (is_asked(late.kind)) {
        answer(late, disk::Fault::kTimedOut, std::vector<bool>(late.digests.size()));
      }
      return true;
    });
  }
  for (Flight& flight : flights_) {
    const Request& late = flight.request;
    const bool may = late.kind == Request::Kind::kFind || late.kind == Request::Kind::kGet;
    if (!may || flight.abandoned || late.deadline > now) continue;
    flight.abandoned = true;
    if (&flight == &flights_.front() && receiving_.active() && receiving_.skip == 0) {
      for (std::size_t i = receiving_.at; i < receiving_.parts.size(); ++i) {
        receiving_.skip += static_cast<std::int64_t>(receiving_.parts[i].iov_len);
      }
      receiving_.parts.clear();
      receiving_.at = 0;
    }
    answer(late, disk::Fault::kTimedOut, std::vector<bool>(late.digests.size()));
  }
  if (!fd_.valid()) return;
  if (!flights_.empty() && now - progress_ > kLate) {
    return fail(make_error(ErrorCode::kDeadlineExceeded,
                           setup_.address + " says nothing: look at its load and the network"));
  }
  if (!flights_.empty() && now - replied_ > kSlow) {
    return fail(make_error(
        ErrorCode::kDeadlineExceeded,
        setup_.address + " takes over 20 s for a reply: look at its load and the network"));
  }
  if (flights_.empty() && state_ == State::kOn && now - progress_ >= kIdle) {
    Flight ping;
    ping.request.deadline = TimePoint::max();
    ready_[0].push_back(std::move(ping));
  }
}

void Link::fail(const Error& why) {
  fd_.reset();
  const bool was_on = state_ == State::kOn;
  state_ = State::kOff;
  pause_ = was_on ? kFirstPause : std::clamp(pause_ * 2, kFirstPause, kLongestPause);
  next_try_ = setup_.clock->now() + pause_;
  sending_ = {};
  receiving_ = {};
  input_.at = input_.end = 0;
  bool is_new = false;
  {
    const std::lock_guard lock(mutex_);
    is_new = was_on || status_.why.message != why.message;
    status_.on = false;
    status_.why = why;
    if (was_on) ++status_.offs;
    ++status_.errors;
  }
  take_incoming();
  std::deque<Flight> all = std::move(flights_);
  flights_.clear();
  for (std::deque<Flight>& ready : ready_) {
    std::move(ready.begin(), ready.end(), std::back_inserter(all));
    ready.clear();
  }
  for (const Flight& flight : all) {
    if (!is_asked(flight.request.kind) || flight.abandoned) continue;
    answer(flight.request, disk::Fault::kClosed, std::vector<bool>(flight.request.digests.size()));
  }
  if (is_new) setup_.change({setup_.address, false, why});
}

void Link::answer(const Request& request, disk::Fault fault, std::vector<bool> there) {
  {
    const std::lock_guard lock(mutex_);
    --queued_[priority(request.kind)];
    const bool miss = fault == disk::Fault::kEmpty;
    if (fault != disk::Fault::kNone && !miss) ++status_.errors;
    if (request.kind == Request::Kind::kFind) ++status_.finds;
    if (miss) ++status_.misses;
    if (request.kind == Request::Kind::kGet && fault == disk::Fault::kNone) ++status_.loads;
  }
  setup_.answer({setup_.number, request.kind, request.ticket, fault, std::move(there)});
}

// ---- sending ----

// As much as the socket takes.
void Link::send() {
  while (fd_.valid() && (is_sending() || fill())) {
    flush();
    if (is_sending()) return;
  }
}

// Small commands go together; a value ends what goes at once.
bool Link::fill() {
  sending_ = {};
  bool value = false;
  for (std::size_t kind = 0; kind < ready_.size(); ++kind) {
    while (!value && !ready_[kind].empty() && flights_.size() < kMostFlights) {
      const auto puts = std::count_if(flights_.begin(), flights_.end(), [](const Flight& flight) {
        return flight.request.kind == Request::Kind::kPut;
      });
      if (kind == 2 && static_cast<std::size_t>(puts) >= kMostPuts) break;
      if (kind == 2) sum_ahead();
      if (ready_[kind].empty()) break;
      Flight flight = std::move(ready_[kind].front());
      ready_[kind].pop_front();
      value = flight.setting;
      begin(std::move(flight));
    }
  }
  if (sending_.head.empty()) return false;
  sending_.parts.insert(sending_.parts.begin(),
                        part_of(sending_.head.data(), sending_.head.size()));
  return true;
}

// While the socket takes no more, the sums of the next value are computed.
void Link::sum_ahead() {
  std::deque<Flight>& puts = ready_[2];
  while (!puts.empty() && puts.front().setting && !puts.front().header) {
    const Request& request = puts.front().request;
    const Result<disk::Sector> header = make_header(request.shape, request.key, request.from);
    if (header.ok()) {
      puts.front().header = std::make_unique<const disk::Sector>(*header);
      return;
    }
    answer(request, disk::Fault::kRefused);
    puts.pop_front();
  }
}

void Link::begin(Flight flight) {
  const Request& request = flight.request;
  flight.since = setup_.clock->now();
  if (flights_.empty()) progress_ = replied_ = flight.since;
  const std::string ttl = std::to_string(setup_.ttl.count() / 1'000'000);
  switch (request.kind) {
    case Request::Kind::kHello:
      return;
    case Request::Kind::kPing:
      add_command(sending_.head, {"PING"});
      break;
    case Request::Kind::kFind:
      begin_find(flight);
      break;
    case Request::Kind::kDrop:
      add_command(sending_.head, {"UNLINK", key_name(request.shape, request.key.digest)});
      break;
    case Request::Kind::kGet:
      add_command(sending_.head, {"GETEX", key_name(request.shape, request.key.digest), "PX", ttl});
      break;
    case Request::Kind::kPut:
      if (!flight.setting) {
        add_command(sending_.head, {"PEXPIRE", key_name(request.shape, request.key.digest), ttl});
      } else {
        begin_value(flight);
      }
      break;
  }
  flights_.push_back(std::move(flight));
}

void Link::begin_find(Flight& flight) {
  const Request& request = flight.request;
  Finding& finding = flight.finding;
  const std::size_t all = request.digests.size();
  if (finding.there.empty()) {
    finding.there.resize(all);
    for (std::size_t at = 0; at < all; at += kFindGroup) {
      finding.unclear.push_back({at, std::min(kFindGroup, all - at)});
    }
  }
  finding.parts = std::exchange(finding.unclear, {});
  flight.left = finding.parts.size();
  for (const Finding::Part part : finding.parts) {
    begin_command(sending_.head, part.size + 1);
    add_word(sending_.head, "EXISTS");
    for (std::size_t i = part.first; i < part.first + part.size; ++i) {
      add_word(sending_.head, key_name(request.shape, request.digests[i]));
    }
  }
}

void Link::begin_value(Flight& flight) {
  const Request& request = flight.request;
  sending_.header = std::move(flight.header);
  std::string& head = sending_.head;
  begin_command(head, 5);
  add_word(head, "SET");
  add_word(head, key_name(request.shape, request.key.digest));
  head += "$" + std::to_string(value_bytes(request.shape).value) + "\r\n";
  sending_.parts.push_back(part_of(sending_.header->data(), sending_.header->size()));
  for (const auto& group : request.from) {
    sending_.parts.push_back(part_of(group.data(), group.size()));
  }
  sending_.tail = "\r\n";
  add_word(sending_.tail, "PX");
  add_word(sending_.tail, std::to_string(setup_.ttl.count() / 1'000'000));
  sending_.parts.push_back(part_of(sending_.tail.data(), sending_.tail.size()));
}

void Link::flush() {
  while (is_sending()) {
    msghdr message{};
    message.msg_iov = sending_.parts.data() + sending_.at;
    message.msg_iovlen = sending_.parts.size() - sending_.at;
    const ssize_t sent = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) return;
    if (sent < 0) {
      return fail(make_error(ErrorCode::kUnavailable, setup_.address + ": " + errno_words(errno) +
                                                          "; look into the server's log"));
    }
    // A socket takes small commands of a server that has stopped, too.
    if (sending_.header) progress_ = setup_.clock->now();
    {
      const std::lock_guard lock(mutex_);
      status_.out = status_.out + Bytes(sent);
    }
    auto left = static_cast<std::size_t>(sent);
    while (is_sending() && left >= sending_.parts[sending_.at].iov_len) {
      left -= sending_.parts[sending_.at++].iov_len;
    }
    if (!is_sending()) return;
    iovec& part = sending_.parts[sending_.at];
    part.iov_base = static_cast<char*>(part.iov_base) + left;
    part.iov_len -= left;
  }
}

}  // namespace kvd::remote
