#include <cstdint>
#include <optional>
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

/// Opens once, however late the answer: nobody would know of another space.
Result<std::uint64_t> open_anew(const SessionPtr& session, const RegionMapping& mapping,
                                std::optional<std::uint64_t>& posted, TimePoint deadline) {
  if (!posted) {
    wire::SpaceCommand open;
    open.body.slabs = static_cast<std::uint32_t>(mapping.mapped.size());
    KVD_ASSIGN_OR_RETURN(posted, session->post(open, true, deadline));
  }
  return value_of(session->collect(*posted, deadline));
}

// Positions that this process has backed with its own memory are left out: for the daemon nothing
// stands there. Each step may be repeated.
Status claim_space(const SessionPtr& session, RegionBook::Entry& entry,
                   std::optional<std::uint64_t>& opening, TimePoint deadline) {
  Status claimed;
  for (auto& [id, part] : *entry.parts) {
    if (Status one = claim_one(session, part.grant, deadline); !one.ok()) claimed = std::move(one);
  }
  KVD_TRY(claimed);
  if (entry.grant.session.lock() != session) {
    KVD_ASSIGN_OR_RETURN(const std::uint64_t space,
                         open_anew(session, *entry.mapping, opening, deadline));
    entry.grant = {RegionId(space), session, {}};
  }
  for (const auto& [id, part] : *entry.parts) {
    wire::SpaceCommand place;
    place.body.space = entry.grant.daemon_id.value;
    place.body.region = part.grant.daemon_id.value;
    place.positions = part.positions;
    KVD_TRY(session->call(place, deadline));
  }
  return {};
}

bool is_late(ErrorCode code) {
  return code == ErrorCode::kDeadlineExceeded || code == ErrorCode::kWouldBlock;
}

}  // namespace

void DaemonLink::claim(const SessionPtr& session, TimePoint deadline) {
  if (asked_.session.lock() != session) asked_ = {session, false, {}};
  if (asked_.answered) return;
  asked_.answered = true;
  for (auto& [id, entry] : regions_.all()) {
    const Status told = entry.parts ? claim_space(session, entry, asked_.opening[id], deadline)
                                    : claim_one(session, entry.grant, deadline);
    if (is_late(told.code())) asked_.answered = false;
  }
}

}  // namespace kvd::client
