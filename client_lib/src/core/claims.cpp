#include <utility>

#include "client_lib/src/core/convert.hpp"
#include "client_lib/src/core/daemon_link.hpp"

/// Regions that a daemon granted and the daemon after it takes over (ipc/PROTOCOL.md, kClaim).
namespace kvd::client {
namespace {

/// False: the daemon does not have it.
bool claim_one(const SessionPtr& session, RegionBook::Grant& grant, TimePoint deadline) {
  if (grant.session.lock() == session) return true;
  const auto region = answer_of<wire::AllocateReplyBody>(
      session->call(grant.claim, deadline),
      [](const wire::AllocateReplyBody& granted) { return RegionId(granted.region); });
  if (!region.ok()) return false;
  grant.daemon_id = *region;
  grant.session = session;
  return true;
}

// Positions behind which stands memory of this process are no part, and nothing stands there to the
// daemon.
void claim_space(const SessionPtr& session, RegionBook::Entry& entry, TimePoint deadline) {
  bool all = true;
  for (auto& [id, part] : *entry.parts) all = claim_one(session, part.grant, deadline) && all;
  if (!all) return;
  wire::SpaceCommand open;
  open.body.slabs = static_cast<std::uint32_t>(entry.mapping->mapped.size());
  const auto space = value_of(session->call(open, deadline));
  if (!space.ok()) return;
  for (const auto& [id, part] : *entry.parts) {
    wire::SpaceCommand place;
    place.body.space = *space;
    place.body.region = part.grant.daemon_id.value;
    place.positions = part.positions;
    if (session->call(place, deadline).ok()) continue;
    (void)session->call(wire::FinishCommand{space_target(RegionId(*space))}, deadline);
    return;
  }
  entry.grant = {RegionId(*space), session, {}};
}

}  // namespace

void DaemonLink::claim(const SessionPtr& session, TimePoint deadline) {
  if (claimed_for_.lock() == session) return;
  claimed_for_ = session;
  for (auto& [id, entry] : regions_.all()) {
    if (entry.grant.session.lock() == session) continue;
    if (entry.parts) {
      claim_space(session, entry, deadline);
    } else {
      (void)claim_one(session, entry.grant, deadline);
    }
  }
}

}  // namespace kvd::client
