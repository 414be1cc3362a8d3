#include "kvd/daemon/sessions/groups.hpp"

#include <string>

#include "kernels/device/fence.hpp"

namespace kvd::daemon {

Group* Groups::find(EngineId engine) {
  const auto it = groups_.find(engine);
  return it == groups_.end() ? nullptr : &it->second;
}

Group* Groups::named(const wire::JoinGroup& join, DomainId domain, uid_t uid) {
  for (auto& [engine, group] : groups_) {
    const bool same_owner = group.domain == domain && group.uid == uid;
    if (same_owner && group.number == join.group && !group.ended) return &group;
  }
  return nullptr;
}

std::uint32_t Groups::ranks(EngineId engine) {
  const Group* group = find(engine);
  return group ? group->ranks() : 1;
}

Result<Group*> Groups::make(const wire::JoinGroup& join, const core::Attach& attach) {
  Group group;
  group.number = join.group;
  group.domain = attach.domain;
  group.uid = attach.uid;
  group.made = events_.now();
  group.attached.assign(join.ranks, false);
  group.devices.assign(join.ranks, attach.devices.first());
  KVD_ASSIGN_OR_RETURN(shm::ServedClientPage page, shm::ServedClientPage::create());
  KVD_ASSIGN_OR_RETURN(
      group.fences,
      PageLease::make(writers_, std::make_shared<shm::ServedClientPage>(std::move(page))));
  KVD_ASSIGN_OR_RETURN(group.grant, events_.attach(attach));
  const EngineId engine = group.grant.engine;
  return &groups_.emplace(engine, std::move(group)).first->second;
}

Result<core::AttachGrant> Groups::enter(const wire::JoinGroup& join, const core::Attach& attach) {
  Group* found = named(join, attach.domain, attach.uid);
  if (!found) {
    KVD_ASSIGN_OR_RETURN(found, make(join, attach));
  }
  Group& group = *found;
  if (group.grant.model_class != *attach.model_class) {
    return make_error(ErrorCode::kInvalidArgument,
                      group.called() + " has another model shape, or " +
                          std::to_string(group.ranks()) + " ranks: all ranks attach alike");
  }
  if (group.attached[join.rank]) {
    return make_error(ErrorCode::kInvalidArgument,
                      "rank " + std::to_string(join.rank) + " of " + group.called() +
                          " is attached already: give each rank its own number, and each run of "
                          "the engine a group of its own");
  }
  group.attached[join.rank] = true;
  group.devices[join.rank] = attach.devices.first();
  group.streams_layers = group.streams_layers && attach.streams_layers;
  // Nothing that needs all ranks is served before the last one has come.
  if (group.complete()) {
    events_.feed(
        core::RanksPlaced{group.grant.engine, core::Devices(group.devices), group.streams_layers});
  }
  core::AttachGrant grant = group.grant;
  grant.engine = EngineId(grant.engine.value + join.rank);
  grant.generation = Generation(grant.generation.value + join.rank);
  return grant;
}

void Groups::forget_rank(EngineId engine, std::uint32_t rank) {
  Group& group = groups_.at(engine);
  group.attached[rank] = false;
  if (group.present() > 0) return;
  groups_.erase(engine);
  events_.feed(core::Detach{engine});
}

std::size_t Groups::seats(const wire::JoinGroup& join, DomainId domain, uid_t uid) {
  const Group* group = named(join, domain, uid);
  if (group == nullptr) return join.ranks;
  return group->awaited(events_.now()) > 0 ? 0 : 1;
}

void Groups::add_missing(DomainId domain, SessionCounts& all, SessionCounts& of_domain) const {
  for (const auto& [engine, group] : groups_) {
    const std::size_t missing = group.awaited(events_.now());
    all.open += missing;
    if (group.domain == domain) of_domain.open += missing;
  }
}

// Slabs go to the ranks that are there, so nothing that may need a slab begins before all are.
Status Groups::check(const Peer& peer, const decltype(core::Command::body)& body) {
  if (!peer.group) return {};
  const Group& group = groups_.at(peer.group);
  if (group.complete() || std::holds_alternative<core::Ping>(body) ||
      std::holds_alternative<core::Stats>(body)) {
    return {};
  }
  return make_error(ErrorCode::kWouldBlock, std::to_string(group.present()) + " of " +
                                                std::to_string(group.ranks()) + " ranks of " +
                                                group.called() +
                                                " have attached: start the others, ask again");
}

void Groups::expect(EngineId engine, SlabIndex slab, DeviceId device) {
  if (Group* group = find(engine)) group->slabs[slab] = {group->ranks_on(device), 0, 0};
}

void Groups::on_slab(const Peer& peer, SlabIndex slab, bool mapped) {
  if (!peer.group) {
    return mapped ? events_.feed(core::SlabMapped{peer.engine, slab})
                  : events_.feed(core::SlabUnmapped{peer.engine, slab});
  }
  Group& group = groups_.at(peer.group);
  const auto known = group.slabs.find(slab);
  const std::uint64_t rank = std::uint64_t{1} << peer.rank;
  // One it was never sent.
  if (known == group.slabs.end() || (known->second.sent_to & rank) == 0) return;
  std::uint64_t& said = mapped ? known->second.mapped : known->second.unmapped;
  said |= rank;
  if (said != known->second.sent_to) return;
  if (mapped) {
    events_.feed(core::SlabMapped{peer.group, slab});
  } else {
    group.slabs.erase(known);
    events_.feed(core::SlabUnmapped{peer.group, slab});
  }
}

void Groups::raise_fences(EngineId engine) {
  const Group* group = find(engine);
  if (!group) return;
  shm::ServedClientPage& raised = group->fences->page();
  sessions_.each_rank(engine, [&](const Peer& peer) {
    kernels::publish({&peer.page->fence_h2d(), raised.fence_h2d().load()});
    kernels::publish({&peer.page->fence_d2h(), raised.fence_d2h().load()});
  });
}

}  // namespace kvd::daemon
