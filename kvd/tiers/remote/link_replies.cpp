// What a server says, and what follows from it.
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <utility>

#include "ipc/vocabulary/errno_words.hpp"
#include "kvd/tiers/remote/link.hpp"

namespace kvd::remote {

namespace {

/// How long nothing is written to a server that has no room, or takes no writes.
constexpr Nanoseconds kNoWrites = std::chrono::seconds(5);

Error garbage(const std::string& address) {
  return make_error(ErrorCode::kUnsupported,
                    address + " does not speak as Redis does: correct remote.servers");
}

}  // namespace

// Bounded, so that one connection's bytes do not keep the thread from deadlines.
void Link::receive() {
  for (int reads = 0; reads < 64 && fd_.valid(); ++reads) {
    const std::int64_t got = read_some();
    if (got <= 0) return;
    progress_ = setup_.clock->now();
    {
      const std::lock_guard lock(mutex_);
      status_.in = status_.in + Bytes(got);
    }
    if (receiving_.open) receiving_.compare(flights_.front().request);
    use_input();
  }
}

// Returns how many bytes it read, or -1 where there are none for now. A value goes straight where
// it belongs, and what follows it into the buffer.
std::int64_t Link::read_some() {
  static thread_local std::array<char, 65536> passed;
  std::array<iovec, 64> parts;
  std::size_t count = 0;
  const bool skips = receiving_.skip > 0;
  if (skips) {
    const auto most = std::min<std::int64_t>(receiving_.skip, passed.size());
    parts[count++] = {passed.data(), static_cast<std::size_t>(most)};
  }
  for (std::size_t i = receiving_.at; !skips && i < receiving_.parts.size() && count < 63; ++i) {
    parts[count++] = receiving_.parts[i];
  }
  const bool whole = !skips && receiving_.parts.size() - receiving_.at == count;
  if (whole) parts[count++] = {input_.bytes.data() + input_.end, input_.bytes.size() - input_.end};
  const ssize_t got = ::readv(fd_.get(), parts.data(), static_cast<int>(count));
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return -1;
  if (got <= 0) {
    fail(make_error(ErrorCode::kUnavailable, setup_.address + ": " +
                                                 (got == 0 ? "it hung up" : errno_words(errno)) +
                                                 "; look into the server's log"));
    return -1;
  }
  auto left = static_cast<std::size_t>(got);
  if (skips) {
    receiving_.skip -= got;
    return got;
  }
  while (receiving_.at < receiving_.parts.size() && left > 0) {
    iovec& part = receiving_.parts[receiving_.at];
    const std::size_t filled = std::min(left, part.iov_len);
    part.iov_base = static_cast<char*>(part.iov_base) + filled;
    part.iov_len -= filled;
    left -= filled;
    if (part.iov_len > 0) break;
    ++receiving_.at;
  }
  input_.end += left;
  return got;
}

void Link::use_input() {
  while (fd_.valid()) {
    if (receiving_.open) {
      take_buffered();
      if (receiving_.active()) break;
      on_value();
      continue;
    }
    const std::string_view there(input_.bytes.data() + input_.at, input_.end - input_.at);
    const std::size_t end = there.find("\r\n");
    if (end == std::string_view::npos) {
      if (there.size() > kLongestLine) return fail(garbage(setup_.address));
      break;
    }
    input_.at += end + 2;
    on_line(there.substr(0, end));
  }
  // What is left moves to the front of the buffer.
  std::copy(input_.bytes.begin() + static_cast<std::ptrdiff_t>(input_.at),
            input_.bytes.begin() + static_cast<std::ptrdiff_t>(input_.end), input_.bytes.begin());
  input_.end -= input_.at;
  input_.at = 0;
}

void Link::Receiving::compare(const Request& request) {
  if (parts.empty() || at == 0) return;
  if (said.sums.empty() && fault == disk::Fault::kNone) {
    fault = read_header(request.shape, request.key, header, said);
  }
  const std::size_t whole = std::min(at - 1, request.into.size());
  for (; compared < whole && fault == disk::Fault::kNone; ++compared) {
    fault = remote::compare(said, compared, request.into);
  }
}

// What the buffer has of the value.
void Link::take_buffered() {
  while (receiving_.active() && input_.at < input_.end) {
    const std::size_t there = input_.end - input_.at;
    if (receiving_.skip > 0) {
      const auto passed = std::min(receiving_.skip, static_cast<std::int64_t>(there));
      receiving_.skip -= passed;
      input_.at += static_cast<std::size_t>(passed);
      continue;
    }
    iovec& part = receiving_.parts[receiving_.at];
    const std::size_t filled = std::min(there, part.iov_len);
    std::copy_n(input_.bytes.data() + input_.at, filled, static_cast<char*>(part.iov_base));
    part.iov_base = static_cast<char*>(part.iov_base) + filled;
    part.iov_len -= filled;
    input_.at += filled;
    if (part.iov_len == 0) ++receiving_.at;
  }
}

// ---- replies ----

void Link::on_line(std::string_view line) {
  const std::optional<Reply> reply = parse_reply(line);
  if (!reply || flights_.empty()) return fail(garbage(setup_.address));
  replied_ = progress_;
  Flight& flight = flights_.front();
  // The memory of a value that is still being sent must not be given back.
  const bool early = flight.setting && flights_.size() == 1 && is_sending();
  if (early && reply->kind != Reply::Kind::kError) return fail(garbage(setup_.address));
  switch (reply->kind) {
    case Reply::Kind::kError:
      return on_refusal(flight, reply->text, early);
    case Reply::Kind::kNumber:
      return on_number(flight, reply->number);
    case Reply::Kind::kBulk:
      return on_bulk(flight, reply->number);
    case Reply::Kind::kNone:
      if (flight.request.kind == Request::Kind::kGet) return over(disk::Fault::kEmpty);
      return on_word(flight);
    case Reply::Kind::kText:
      return on_word(flight);
  }
}

// OK, PONG, or that there is no probe.
void Link::on_word(Flight& flight) {
  if (--flight.left > 0) return;
  switch (flight.request.kind) {
    case Request::Kind::kHello:
      return on_hello();
    case Request::Kind::kPing:
      measure(flight);
      return over(disk::Fault::kNone);
    case Request::Kind::kPut:
      if (flight.setting) {
        count(&ServerStatus::stores);
        return over(disk::Fault::kNone);
      }
      [[fallthrough]];
    default:
      return fail(garbage(setup_.address));
  }
}

void Link::on_hello() {
  over(disk::Fault::kNone);
  state_ = State::kOn;
  {
    const std::lock_guard lock(mutex_);
    status_.on = true;
    status_.why = {ErrorCode::kOk, {}};
  }
  no_writes_before_ = TimePoint{0};
  setup_.change({setup_.address, true, {ErrorCode::kOk, {}}});
}

void Link::on_number(Flight& flight, std::int64_t number) {
  const Request& request = flight.request;
  switch (request.kind) {
    case Request::Kind::kDrop:
      return over(disk::Fault::kNone);
    case Request::Kind::kFind:
      return on_found(flight, number);
    case Request::Kind::kPut:
      if (flight.setting || number < 0 || number > 1) break;
      if (number == 1) {
        count(&ServerStatus::renewals);
        return over(disk::Fault::kNone);
      }
      flight.setting = true;
      ready_[2].push_front(std::move(flight));
      flights_.pop_front();
      return;
    default:
      break;
  }
  fail(garbage(setup_.address));
}

// A number for a group says which are there where it says all or none.
void Link::on_found(Flight& flight, std::int64_t number) {
  Finding& finding = flight.finding;
  const Finding::Part part = finding.parts[finding.parts.size() - flight.left];
  const auto all = static_cast<std::int64_t>(part.size);
  if (number < 0 || number > all) return fail(garbage(setup_.address));
  for (std::size_t i = part.first; i < part.first + part.size; ++i) {
    finding.there[i] = number == all;
    if (number > 0 && number < all) finding.unclear.push_back({i, 1});
  }
  if (flight.left == finding.parts.size()) measure(flight);
  if (--flight.left > 0) return;
  if (finding.unclear.empty()) return over(disk::Fault::kNone, std::move(finding.there));
  if (!flight.abandoned) ready_[0].push_front(std::move(flight));
  flights_.pop_front();
}

void Link::on_bulk(Flight& flight, std::int64_t bytes) {
  const Request& request = flight.request;
  const bool get = request.kind == Request::Kind::kGet;
  if (!get && request.kind != Request::Kind::kHello) return fail(garbage(setup_.address));
  receiving_.parts.clear();
  receiving_.at = 0;
  receiving_.said = {};
  receiving_.fault = disk::Fault::kNone;
  receiving_.compared = 0;
  receiving_.open = true;
  receiving_.skip = bytes + 2;
  if (!get || flight.abandoned || bytes != value_bytes(request.shape).value) return;
  receiving_.skip = 0;
  receiving_.parts.push_back({receiving_.header.data(), receiving_.header.size()});
  for (const auto& group : request.into) receiving_.parts.push_back({group.data(), group.size()});
  receiving_.parts.push_back({receiving_.end.data(), receiving_.end.size()});
}

void Link::on_value() {
  const bool whole = !receiving_.parts.empty();
  receiving_.compare(flights_.front().request);
  receiving_.open = false;
  receiving_.parts.clear();
  receiving_.at = 0;
  Flight& flight = flights_.front();
  const Request& request = flight.request;
  if (request.kind == Request::Kind::kHello) return on_word(flight);
  if (flight.abandoned) return over(disk::Fault::kTimedOut);
  if (whole && receiving_.end != std::array<char, 2>{'\r', '\n'}) {
    return fail(garbage(setup_.address));
  }
  const disk::Fault fault = whole ? receiving_.fault : disk::Fault::kTruncated;
  if (fault != disk::Fault::kNone) drop(request);
  over(fault);
}

void Link::on_refusal(Flight& flight, std::string_view text, bool early) {
  Refusal refusal = refusal_of(text);
  refusal.error.message = setup_.address + ": " + refusal.error.message;
  const Request::Kind kind = flight.request.kind;
  if (refusal.scope == Refusal::Scope::kValue && kind == Request::Kind::kGet) {
    drop(flight.request);
    return over(disk::Fault::kOtherKey);
  }
  if (refusal.scope == Refusal::Scope::kValue && kind == Request::Kind::kHello) {
    return on_word(flight);  // some other program's key
  }
  if (refusal.scope != Refusal::Scope::kWrites || kind != Request::Kind::kPut || early) {
    return fail(refusal.error);
  }
  const TimePoint now = setup_.clock->now();
  bool is_new = false;
  {
    const std::lock_guard lock(mutex_);
    is_new = status_.why.message != refusal.error.message;
    status_.why = refusal.error;
  }
  no_writes_before_ = now + kNoWrites;
  if (is_new) setup_.change({setup_.address, true, refusal.error});
  over(disk::Fault::kFull);
}

/// A value that is not the block's makes way for the right one.
void Link::drop(const Request& of) {
  Flight flight;
  flight.request.kind = Request::Kind::kDrop;
  flight.request.shape = of.shape;
  flight.request.key = of.key;
  flight.request.deadline = TimePoint::max();
  ready_[0].push_back(std::move(flight));
}

void Link::over(disk::Fault fault, std::vector<bool> there) {
  const Flight flight = std::move(flights_.front());
  flights_.pop_front();
  const Request::Kind kind = flight.request.kind;
  if (flight.abandoned || !is_asked(kind)) return;
  if (there.empty()) there.resize(flight.request.digests.size());
  answer(flight.request, fault, std::move(there));
}

void Link::measure(const Flight& flight) {
  const Nanoseconds took = setup_.clock->now() - flight.since;
  const std::lock_guard lock(mutex_);
  Nanoseconds& mean = status_.round_trip;
  mean = mean.count() == 0 ? took : mean + (took - mean) / 8;
}

void Link::count(std::uint64_t ServerStatus::*what) {
  const std::lock_guard lock(mutex_);
  ++(status_.*what);
}

}  // namespace kvd::remote
