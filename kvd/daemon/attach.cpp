#include <sys/epoll.h>

#include "ipc/transport/silent_bounds.hpp"
#include "ipc/wire/attach_codec.hpp"
#include "kvd/daemon/daemon.hpp"
#include "kvd/daemon/log.hpp"
#include "kvd/daemon/session_bounds.hpp"

/// Connections to the attach socket, until all they have to say is there; who is let in then is
/// decided in admit.cpp.
namespace kvd::daemon {

namespace {

constexpr Nanoseconds kHelloTimeout = std::chrono::seconds(5);

}  // namespace

void Daemon::accept() {
  for (int i = 0; i < kFramesATurn; ++i) {
    auto connection = listener_->accept();
    if (!connection.ok()) {
      constexpr std::uint64_t kTellEvery = 200;  // tries: ten seconds
      if (attach_paused_++ % kTellEvery == 0) {
        log_warning(connection.error().message + "; attaching has to wait: raise RLIMIT_NOFILE");
      }
      return listen(false);
    }
    if (!connection->has_value()) return;
    const auto uid = (*connection)->uid();
    if (!uid.ok()) continue;  // gone already
    transport::SilentUids uids;
    for (const auto& [id, pending] : pending_) uids.emplace(id, pending.uid);
    if (const auto leaver = who_gives_way(uids, *uid, silent_bounds(config_))) {
      remove_pending(static_cast<std::uint32_t>(*leaver));
    }
    const std::uint32_t id = ++last_pending_;
    const int fd = (*connection)->fd();
    pending_.emplace(id,
                     Pending{std::move(**connection), clock_.now() + kHelloTimeout, *uid, {}, {}});
    if (!add(Source::kPending, id, fd).ok()) remove_pending(id);
  }
}

Daemon::Pending Daemon::remove_pending(std::uint32_t id) {
  auto node = pending_.extract(id);
  // Before it is closed, which may happen later and elsewhere.
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, node.mapped().connection.fd(), nullptr);
  return std::move(node.mapped());
}

// Out of descriptors the listener stays readable for a connection that cannot be taken: looking at
// it again before the next tick would spin.
void Daemon::listen(bool on) {
  listening_ = on;
  epoll_event event{};
  event.events = on ? std::uint32_t{EPOLLIN} : 0u;
  event.data.u64 = std::uint64_t{static_cast<std::uint32_t>(Source::kListener)} << 32;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listener_->fd(), &event);
}

void Daemon::on_pending(std::uint32_t id) {
  const auto it = pending_.find(id);
  if (it == pending_.end()) return;
  const auto complete = take_introduction(it->second);
  if (complete.ok() && !*complete) return;
  Pending pending = remove_pending(id);
  transport::AttachConnection& connection = pending.connection;
  Status status = complete.ok() ? Status() : Status(complete.error());
  if (status.ok()) {
    const auto version =
        wire::common_version(pending.hello->version_min, pending.hello->version_max);
    status = version.ok() ? admit(connection, *pending.hello, pending.join, *version)
                          : Status(version.error());
  }
  if (status.ok() || status.code() == ErrorCode::kPeerGone) return;
  tell(core::Note::Level::kWarning, EngineId(),
       "an attach was refused: " + status.error().to_string());
  refuse(connection, status.error());
}

Result<bool> Daemon::take_introduction(Pending& pending) {
  KVD_ASSIGN_OR_RETURN(const auto frame, pending.connection.receive());
  KVD_ASSIGN_OR_RETURN(const wire::AttachMessage message, wire::decode_attach(frame.bytes()));
  if (!pending.hello) {
    const auto* hello = std::get_if<wire::Hello>(&message);
    if (!hello) {
      return make_error(ErrorCode::kInvalidArgument, "a connection begins with a hello frame");
    }
    pending.hello = *hello;
    return (hello->abilities & wire::kJoinsGroup) == 0;
  }
  const auto* join = std::get_if<wire::JoinGroup>(&message);
  if (!join) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the hello announced a join group frame, and another one followed");
  }
  pending.join = *join;
  return true;
}

void Daemon::refuse(transport::AttachConnection& connection, const Error& error) {
  wire::Refused refused;
  refused.code = static_cast<std::uint16_t>(error.code);
  wire::set_text(refused.message, error.message);
  (void)connection.send(wire::seal(refused)).ok();  // a peer that left needs no answer
}

}  // namespace kvd::daemon
