#include "kvd/daemon/service/socket_watch.hpp"

#include <utility>

#include "kvd/daemon/machine/places.hpp"

namespace kvd::daemon {

namespace {

constexpr Nanoseconds kBetweenLooks = std::chrono::seconds(1);

}  // namespace

void SocketWatch::on_tick() {
  if (uses_.clock.now() < next_) return;
  next_ = uses_.clock.now() + kBetweenLooks;
  const Result<bool> anew = restore();
  if (anew.ok() && *anew) {
    uses_.log.warn(EngineId(),
                   "the sockets were removed, and engines found no kvd; it listens anew at " +
                       uses_.config.attach_socket);
  }
  std::string now = anew.ok() ? "" : anew.error().message;
  const std::lock_guard lock(mutex_);
  if (!now.empty() && now != fault_) {
    uses_.log.tell(
        core::Note::Level::kError, EngineId(),
        "the sockets were removed, and no engine can attach until kvd can listen anew: " + now);
  }
  fault_ = std::move(now);
}

// Engines come by the attach socket and are sent on to the other one, which is there first.
Result<bool> SocketWatch::restore() {
  auto commands = uses_.server.restore();
  if (!commands.ok() && make_runtime_dir(uses_.config).ok()) commands = uses_.server.restore();
  KVD_TRY(commands);
  KVD_ASSIGN_OR_RETURN(const bool attach, uses_.acceptor.restore());
  return *commands || attach;
}

std::string SocketWatch::fault() const {
  const std::lock_guard lock(mutex_);
  return fault_;
}

}  // namespace kvd::daemon
