#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "client_lib/src/core/convert.hpp"
#include "client_lib/src/core/regions.hpp"
#include "client_lib/src/memory/mapping_hold.hpp"

/// Regions that grow and shrink: addresses for the most that there may ever be, and regions of the
/// daemon behind some of them. A part arrives as any region does, and is then mapped slab by slab
/// where the caller wants it.
namespace kvd::client {
namespace {

Status check_positions(const RegionMapping& space, std::span<const std::uint32_t> positions) {
  if (positions.empty()) return invalid("no positions to grow at");
  if (positions.size() > wire::kMaxRequestsPerStep) {
    return invalid("more than 4096 positions: grow in several calls");
  }
  std::vector<bool> taken = space.mapped;
  for (const std::uint32_t position : positions) {
    if (position >= taken.size()) {
      return invalid("position " + std::to_string(position) + " of a region with " +
                     std::to_string(taken.size()));
    }
    if (taken[position]) {
      return invalid("position " + std::to_string(position) +
                     " is named twice, or has memory behind it");
    }
    taken[position] = true;
  }
  return {};
}

Bytes offset_of(const RegionMapping& space, std::uint64_t position) {
  return space.slab_bytes * static_cast<std::int64_t>(position);
}

Status leave(RegionMapping& space, std::span<const std::uint32_t> positions) {
  for (const std::uint32_t position : positions) {
    KVD_TRY(space.range->unmap(offset_of(space, position), space.slab_bytes));
    space.mapped[position] = false;
  }
  return {};
}

/// A part that is no longer there was given back by an earlier call whose answer came late.
Status finish_part(Session& session, const RegionBook::Part& part, TimePoint deadline) {
  const Status status = finish_region(session, part.grant.daemon_id, deadline);
  const bool went =
      status.code() == ErrorCode::kUnavailable || status.code() == ErrorCode::kNotFound;
  return went ? Status() : status;
}

}  // namespace

Result<kvd_client::Region> Regions::reserve(std::uint64_t bytes, Nanoseconds timeout) {
  KVD_TRY(MappingHold::of_process().need_change());
  return link_.on_memory(
      timeout, [&](const SessionPtr& session, TimePoint until) -> Result<kvd_client::Region> {
        const Bytes slab(static_cast<std::int64_t>(session->welcome().slab_bytes));
        if (bytes == 0 || bytes > wire::kMaxRegionBytes || slab <= Bytes(0) ||
            bytes / slab.size() >= std::numeric_limits<std::uint32_t>::max()) {
          return invalid("a region of " + std::to_string(bytes) + " bytes cannot be reserved");
        }
        const auto slabs =
            static_cast<std::uint32_t>(pieces(Bytes(static_cast<std::int64_t>(bytes)), slab));
        wire::SpaceCommand open;
        open.body.slabs = slabs;
        KVD_ASSIGN_OR_RETURN(const std::uint64_t id, value_of(session->call(open, until)));
        auto mapping = session->slabs().reserve(slabs, slab);
        if (!mapping.ok()) {
          (void)session->call(wire::FinishCommand{space_target(RegionId(id))},
                              link_.clock().now() + kReturnTimeout);
          return mapping.error();
        }
        RegionBook::Grant grant{RegionId(id), session, {}};
        return keep({std::move(grant), std::move(*mapping), RegionBook::Parts()});
      });
}

Result<RegionBook::Entry*> Regions::space(std::uint64_t id) {
  RegionBook::Entry* entry = link_.regions().find(id);
  if (entry == nullptr) return none(id);
  if (!entry->parts) {
    return invalid("region " + std::to_string(id) +
                   " has one size: make one that grows with kvd_region_reserve");
  }
  return entry;
}

Result<RegionId> Regions::space_of(std::uint64_t id, const SessionPtr& session) {
  KVD_ASSIGN_OR_RETURN(const RegionBook::Entry* entry, space(id));
  if (entry->grant.session.lock() == session) return entry->grant.daemon_id;
  return make_error(ErrorCode::kUnavailable,
                    "region " + std::to_string(id) +
                        " is of an earlier kvd, which is gone: free it and reserve another");
}

Result<std::uint64_t> Regions::grow(std::uint64_t id, std::span<const std::uint32_t> positions,
                                    Nanoseconds timeout) {
  KVD_ASSIGN_OR_RETURN(const auto change, MappingHold::of_process().need_change());
  return link_.on_memory(
      timeout, [&](const SessionPtr& session, TimePoint until) -> Result<std::uint64_t> {
        KVD_ASSIGN_OR_RETURN(const RegionId of_daemon, space_of(id, session));
        RegionBook::Entry& entry = *link_.regions().find(id);
        KVD_TRY(check_positions(*entry.mapping, positions));
        wire::AllocateBody body;
        body.kind = static_cast<std::uint32_t>(wire::AllocateKind::kRegion);
        body.amount = offset_of(*entry.mapping, positions.size()).size();
        const auto region = answer_of<wire::AllocateReplyBody>(
            session->call(body, until),
            [](const wire::AllocateReplyBody& granted) { return RegionId(granted.region); });
        if (!region.ok()) return region.error();
        const auto stand_there = [&]() -> Status {
          KVD_ASSIGN_OR_RETURN(const auto part, session->slabs().take_region(*region, until));
          part->in_use = false;  // no caller learns of these addresses
          KVD_TRY(stand(*entry.mapping, *part, positions));
          wire::SpaceCommand place;
          place.body.space = of_daemon.value;
          place.body.region = region->value;
          place.positions = positions;
          KVD_TRY(session->call(place, until));
          return {};
        };
        if (const Status status = stand_there(); !status.ok()) {
          // Memory that is still mapped still belongs to the session, and the daemon must not be
          // told otherwise.
          if (leave(*entry.mapping, positions).ok()) {
            (void)return_region(*session, *region, link_.clock().now() + kReturnTimeout);
          }
          return status.error();
        }
        const std::uint64_t part = link_.regions().next_part();
        for (const std::uint32_t position : positions) entry.mapping->mapped[position] = true;
        entry.parts->emplace(part, RegionBook::Part{granted(session, *region),
                                                    {positions.begin(), positions.end()}});
        return part;
      });
}

Status Regions::stand(const RegionMapping& space, const RegionMapping& part,
                      std::span<const std::uint32_t> positions) {
  if (part.mapped.size() != positions.size() || part.slab_bytes != space.slab_bytes) {
    return wrong_reply();
  }
  for (std::size_t i = 0; i < positions.size(); ++i) {
    KVD_TRY(space.range->map_from(offset_of(space, positions[i]), space.slab_bytes, *part.range,
                                  offset_of(space, i)));
  }
  return {};
}

Status Regions::back(std::uint64_t id, std::span<const std::uint32_t> positions,
                     Nanoseconds timeout) {
  KVD_ASSIGN_OR_RETURN(const auto turn, link_.enter(link_.deadline(timeout)));
  KVD_ASSIGN_OR_RETURN(RegionBook::Entry* const entry, space(id));
  const SessionPtr session = link_.connector().session();
  if (entry->grant.session.lock() == session && !session->gone()) {
    return invalid("the kvd of region " + std::to_string(id) +
                   " is there: ask it for memory with kvd_region_grow");
  }
  RegionMapping& mapping = *entry->mapping;
  KVD_TRY(check_positions(mapping, positions));
  KVD_ASSIGN_OR_RETURN(const auto change, MappingHold::of_process().need_change());
  for (const std::uint32_t position : positions) {
    Status mapped = mapping.range->map_own(offset_of(mapping, position), mapping.slab_bytes);
    if (!mapped.ok()) {
      (void)leave(mapping, positions);
      return mapped;
    }
  }
  for (const std::uint32_t position : positions) mapping.mapped[position] = true;
  return {};
}

Status Regions::shrink(std::uint64_t id, std::uint64_t part, Nanoseconds timeout, bool idle) {
  const TimePoint until = link_.deadline(timeout);
  KVD_ASSIGN_OR_RETURN(const auto turn, link_.enter(until));
  KVD_ASSIGN_OR_RETURN(RegionBook::Entry* const entry, space(id));
  const auto found = entry->parts->find(part);
  if (found == entry->parts->end()) {
    return make_error(ErrorCode::kNotFound, "part " + std::to_string(part) +
                                                " is not one of region " + std::to_string(id));
  }
  KVD_ASSIGN_OR_RETURN(auto change, MappingHold::of_process().need_change());
  if (!idle) KVD_TRY(entry->mapping->memory->quiesce(until - link_.clock().now()));
  // It was unmapped in an earlier call if the daemon could not be told then.
  const bool stands = entry->mapping->mapped[found->second.positions.front()];
  if (stands) KVD_TRY(leave(*entry->mapping, found->second.positions));
  change.reset();
  KVD_TRY(hand_back(link_.connector().session(), *entry, found->second, until));
  entry->parts->erase(found);
  return {};
}

Status Regions::hand_back(const SessionPtr& session, const RegionBook::Entry& entry,
                          const RegionBook::Part& part, TimePoint deadline) {
  if (session->gone()) return {};
  if (part.grant.session.lock() != session) {
    const Bytes bytes = offset_of(*entry.mapping, part.positions.size());
    (void)session->call(wire::FinishCommand{orphaned_target(bytes)}, deadline);
    return {};
  }
  return finish_part(*session, part, deadline);
}

Status Regions::close_space(const SessionPtr& session, const RegionBook::Entry& entry,
                            TimePoint deadline) {
  for (const auto& [id, part] : *entry.parts) {
    KVD_TRY(hand_back(session, entry, part, deadline));
    if (session->gone()) return {};
  }
  if (entry.grant.session.lock() != session) return {};
  const auto closed =
      session->call(wire::FinishCommand{space_target(entry.grant.daemon_id)}, deadline);
  const bool failed = !closed.ok() && closed.error().code != ErrorCode::kUnavailable;
  return failed ? Status(closed.error()) : Status();
}

Result<std::uint64_t> Regions::share(std::uint64_t id, const kvd_client::Demand& demand,
                                     Nanoseconds timeout) {
  return link_.on_memory(
      timeout, [&](const SessionPtr& session, TimePoint until) -> Result<std::uint64_t> {
        KVD_ASSIGN_OR_RETURN(const RegionId of_daemon, space_of(id, session));
        const wire::ShareBody share{of_daemon.value,     demand.kept_bytes,  demand.least_bytes,
                                    demand.wanted_bytes, demand.grain_bytes, demand.age_ns};
        if (demand.needs.empty()) return value_of(session->call(share, until));
        const std::vector<wire::SpaceNeed> needs = to_wire(demand.needs);
        const auto granted =
            value_of(session->call(wire::NeedsCommand{{share, 0, 0}, needs}, until));
        const bool is_old = !granted.ok() && granted.error().code == ErrorCode::kUnsupported;
        return is_old ? value_of(session->call(share, until)) : granted;
      });
}

}  // namespace kvd::client
