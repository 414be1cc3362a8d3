#include "client_lib/src/core/daemon_link.hpp"

#include <algorithm>
#include <utility>

#include "client_lib/src/core/convert.hpp"

namespace kvd::client {

DaemonLink::DaemonLink(Introduction introduction, Nanoseconds attach_timeout)
    : attach_timeout_(attach_timeout),
      connector_(std::move(introduction), attach_timeout, clock_) {}

Status DaemonLink::connect() { return connector_.connect(deadline(attach_timeout_)); }

TimePoint DaemonLink::deadline(Nanoseconds timeout) const {
  const TimePoint now = clock_.now();
  return now + std::clamp(timeout, Nanoseconds(0), TimePoint::max() - now);
}

Status DaemonLink::check_fork() const {
  if (!forked()) return {};
  return make_error(ErrorCode::kPeerGone,
                    "this client belongs to the parent process; open another one");
}

Result<CallGate::Turn> DaemonLink::enter(TimePoint deadline) {
  KVD_TRY(check_fork());
  return gate_.enter(deadline);
}

Result<SessionPtr> DaemonLink::session_with_requests() {
  KVD_TRY(check_fork());
  return connector_.session_with_requests();
}

Status finish_region(Session& session, RegionId region, TimePoint deadline) {
  KVD_TRY(session.call(wire::FinishCommand{target_of(region)}, deadline));
  return {};
}

Status return_region(Session& session, RegionId region, TimePoint deadline) {
  session.slabs().discard_region(region);
  return finish_region(session, region, deadline);
}

void return_untaken_regions(Session& session, TimePoint deadline) {
  for (const RegionId region : session.slabs().untaken_regions()) {
    // This need not succeed: a daemon that does not answer now gets everything back with the
    // session.
    (void)return_region(session, region, deadline);
  }
}

}  // namespace kvd::client
