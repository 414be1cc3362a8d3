#include "kvd/daemon/service/acceptor.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "kvd/daemon/base/log.hpp"

namespace kvd::daemon {

namespace {

constexpr Nanoseconds kHelloTimeout = std::chrono::seconds(5);

}  // namespace

Status Acceptor::open() {
  Status status = uses_.poller.watch(Poller::Source::kListener, 0, listener_->fd());
  watched_ = status.ok();
  return status;
}

Result<bool> Acceptor::restore() {
  KVD_ASSIGN_OR_RETURN(const bool anew, listener_->restore());
  if (!anew && watched_) return false;
  listening_ = true;
  KVD_TRY(open());
  return true;
}

void Acceptor::accept() {
  for (int i = 0; i < kFramesATurn; ++i) {
    auto connection = listener_->accept();
    if (!connection.ok()) return pause(connection.error());
    if (!connection->has_value()) return;
    const auto uid = (*connection)->uid();
    if (!uid.ok()) continue;  // it is gone already
    // A turn ends with the first connection it hangs up on, as looking for silent ones costs time.
    if (!make_room(*uid)) return;
    take(std::move(**connection), *uid);
  }
}

// If other users have filled the table, their latest connection makes room, because it has waited
// least.
bool Acceptor::make_room(uid_t uid) {
  const auto crowded = who_is_in_the_way(uid);
  if (!crowded) return true;
  std::vector<std::uint32_t> theirs;
  for (const auto& [id, pending] : pending_) {
    if (pending.uid == *crowded) theirs.push_back(id);
  }
  for (const std::uint32_t id : theirs) on_pending(id);  // what it said may be there, unread
  const auto still = who_is_in_the_way(uid);
  if (!still || *still == uid) return !still;
  const auto latest = std::find_if(pending_.rbegin(), pending_.rend(),
                                   [&](const auto& one) { return one.second.uid == *still; });
  remove(latest->first);
  return true;
}

std::optional<uid_t> Acceptor::who_is_in_the_way(uid_t newcomer) const {
  transport::SilentUids uids;
  for (const auto& [id, pending] : pending_) uids.emplace(id, pending.uid);
  return who_gives_way(uids, newcomer, bounds_);
}

void Acceptor::pause(const Error& why) {
  constexpr std::uint64_t kTellEvery = 200;  // tries: ten seconds
  if (pauses_++ % kTellEvery == 0) {
    log_warning(why.message + "; attaching has to wait: raise RLIMIT_NOFILE");
  }
  listen(false);
}

void Acceptor::take(transport::AttachConnection connection, uid_t uid) {
  const std::uint32_t id = ++last_;
  const int fd = connection.fd();
  pending_.emplace(
      id, Pending{std::move(connection), uses_.clock.now() + kHelloTimeout, uid, false, {}});
  if (!uses_.poller.watch(Poller::Source::kPending, id, fd).ok()) remove(id);
}

Acceptor::Pending Acceptor::remove(std::uint32_t id) {
  auto node = pending_.extract(id);
  // Forgotten before it is closed, as that may happen later and elsewhere.
  uses_.poller.forget(node.mapped().connection.fd());
  return std::move(node.mapped());
}

// Out of descriptors the listener stays readable for a connection that cannot be taken. To look at
// it again before the next tick would spin.
void Acceptor::listen(bool on) {
  listening_ = on;
  uses_.poller.look_at(Poller::Source::kListener, listener_->fd(), on);
}

void Acceptor::on_tick() {
  if (!listening_) listen(true);
  const TimePoint now = uses_.clock.now();
  while (!pending_.empty() && pending_.begin()->second.deadline <= now) {
    const std::uint32_t id = pending_.begin()->first;
    on_pending(id);  // kvd may have stood still, and what it said may be there, unread
    if (pending_.contains(id)) remove(id);
  }
}

void Acceptor::on_pending(std::uint32_t id) {
  const auto it = pending_.find(id);
  if (it == pending_.end()) return;
  const auto complete = hear(it->second);
  if (complete.ok() && !*complete) return;
  Pending pending = remove(id);
  const Status status = complete.ok() ? admit(pending) : Status(complete.error());
  if (status.ok() || status.code() == ErrorCode::kPeerGone) return;
  uses_.log.warn(EngineId(), "an attach was refused: " + status.error().to_string());
  refuse(pending.connection, status.error());
}

Status Acceptor::admit(Pending& pending) {
  const wire::Hello& hello = pending.said.hello;
  KVD_ASSIGN_OR_RETURN(pending.said.version,
                       wire::common_version(hello.version_min, hello.version_max));
  return uses_.maker.admit(pending.connection, pending.said);
}

Result<bool> Acceptor::hear(Pending& pending) {
  const auto frame = pending.connection.receive();
  if (!frame.ok() && frame.error().code == ErrorCode::kWouldBlock) return false;
  if (!frame.ok()) return frame.error();
  KVD_ASSIGN_OR_RETURN(const wire::AttachMessage message, wire::decode_attach(frame->bytes()));
  if (!pending.hello) {
    const auto* hello = std::get_if<wire::Hello>(&message);
    if (!hello) {
      return make_error(ErrorCode::kInvalidArgument, "a connection begins with a hello frame");
    }
    pending.said.hello = *hello;
    pending.hello = true;
    return (hello->abilities & wire::kJoinsGroup) == 0;
  }
  const auto* join = std::get_if<wire::JoinGroup>(&message);
  if (!join) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the hello announced a join group frame, and another one followed");
  }
  pending.said.join = *join;
  return true;
}

void Acceptor::refuse(transport::AttachConnection& connection, const Error& error) {
  wire::Refused refused;
  refused.code = static_cast<std::uint16_t>(error.code);
  wire::set_text(refused.message, error.message);
  (void)connection.send(wire::seal(refused)).ok();  // a peer that left needs no answer
}

}  // namespace kvd::daemon
