#include <utility>

#include "client_lib/src/core/convert.hpp"
#include "client_lib/src/core/daemon_link.hpp"

/// Regions that a daemon granted and the daemon after it takes over (ipc/PROTOCOL.md, kClaim).
namespace kvd::client {
namespace {

Status claim_one(const SessionPtr& session, RegionBook::Grant& grant, TimePoint deadline) {
  if (grant.session.lock() == session) return {};
  KVD_ASSIGN_OR_RETURN(grant.daemon_id,
                       answer_of<wire::AllocateReplyBody>(
                           session->call(grant.claim, deadline),
                           [](const auto& granted) { return RegionId(granted.region); }));
  grant.session = session;
  return {};
}

// Positions behind which stands memory of this process are no part, and nothing stands there to the
// daemon.
Status claim_space(const SessionPtr& session, RegionBook::Entry& entry, TimePoint deadline) {
  Status claimed;
  for (auto& [id, part] : *entry.parts) {
    if (Status one = claim_one(session, part.grant, deadline); !one.ok()) claimed = std::move(one);
  }
  KVD_TRY(claimed);
  if (entry.grant.session.lock() == session) return {};
  wire::SpaceCommand open;
  open.body.slabs = static_cast<std::uint32_t>(entry.mapping->mapped.size());
  KVD_ASSIGN_OR_RETURN(const std::uint64_t space, value_of(session->call(open, deadline)));
  for (const auto& [id, part] : *entry.parts) {
    wire::SpaceCommand place;
    place.body.space = space;
    place.body.region = part.grant.daemon_id.value;
    place.positions = part.positions;
    KVD_TRY(session->call(place, deadline));
  }
  entry.grant = {RegionId(space), session, {}};
  return {};
}

}  // namespace

void DaemonLink::claim(const SessionPtr& session, TimePoint deadline) {
  if (claimed_for_.lock() == session) return;
  bool answered = true;
  for (auto& [id, entry] : regions_.all()) {
    const Status told = entry.parts ? claim_space(session, entry, deadline)
                                    : claim_one(session, entry.grant, deadline);
    answered = answered && told.code() != ErrorCode::kDeadlineExceeded;
  }
  if (answered) claimed_for_ = session;
}

}  // namespace kvd::client
