#include <algorithm>
#include <string>

#include "ipc/wire/attach_codec.hpp"
#include "kernels/device/fence.hpp"
#include "kvd/daemon/daemon.hpp"

/// Tensor-parallel groups: what makes several processes one engine to the Controller.
namespace kvd::daemon {

namespace {

std::string called(const Group& group) { return "group " + std::to_string(group.number); }

}  // namespace

Group* Daemon::group_of(const wire::JoinGroup& join, DomainId domain, uid_t uid) {
  for (auto& [engine, group] : groups_) {
    const bool same_owner = group.domain == domain && group.uid == uid;
    if (same_owner && group.number == join.group && !group.ended()) return &group;
  }
  return nullptr;
}

Result<core::AttachGrant> Daemon::enter_group(const wire::JoinGroup& join,
                                              const core::Attach& attach) {
  Group* found = group_of(join, attach.domain, attach.uid);
  if (!found) {
    Group group;
    group.number = join.group;
    group.domain = attach.domain;
    group.uid = attach.uid;
    group.attached.assign(join.ranks, false);
    KVD_ASSIGN_OR_RETURN(shm::ServedClientPage page, shm::ServedClientPage::create());
    KVD_ASSIGN_OR_RETURN(
        group.fences,
        PageLease::make(backend_, std::make_shared<shm::ServedClientPage>(std::move(page))));
    KVD_ASSIGN_OR_RETURN(group.grant, controller_->attach(attach, clock_.now()));
    const EngineId engine = group.grant.engine;
    found = &groups_.emplace(engine, std::move(group)).first->second;
  }
  Group& group = *found;
  if (group.grant.model_class != *attach.model_class) {
    return make_error(ErrorCode::kInvalidArgument, called(group) + " has another model shape, or " +
                                                       std::to_string(group.ranks()) +
                                                       " ranks: all ranks attach alike");
  }
  if (group.attached[join.rank]) {
    return make_error(ErrorCode::kInvalidArgument,
                      "rank " + std::to_string(join.rank) + " of " + called(group) +
                          " is attached already: give each rank its own number, and each run of "
                          "the engine a group of its own");
  }
  group.attached[join.rank] = true;
  core::AttachGrant grant = group.grant;
  grant.engine = EngineId(grant.engine.value + join.rank);
  grant.generation = Generation(grant.generation.value + join.rank);
  return grant;
}

void Daemon::forget_rank(EngineId engine, std::uint32_t rank) {
  Group& group = groups_.at(engine);
  group.attached[rank] = false;
  if (group.present() > 0) return;
  groups_.erase(engine);
  feed(core::Detach{engine});
}

// Slabs go to those who are there, so nothing that may need one begins before all are.
Status Daemon::check_group(const Peer& peer, const decltype(core::Command::body)& body) {
  if (!peer.group) return {};
  const Group& group = groups_.at(peer.group);
  if (group.complete() || std::holds_alternative<core::Ping>(body) ||
      std::holds_alternative<core::Stats>(body)) {
    return {};
  }
  return make_error(ErrorCode::kWouldBlock, std::to_string(group.present()) + " of " +
                                                std::to_string(group.ranks()) + " ranks of " +
                                                called(group) +
                                                " have attached: start the others, ask again");
}

void Daemon::on_slab(const Peer& peer, SlabIndex slab, bool mapped) {
  if (!peer.group) {
    return mapped ? feed(core::SlabMapped{peer.engine, slab})
                  : feed(core::SlabUnmapped{peer.engine, slab});
  }
  Group& group = groups_.at(peer.group);
  const auto known = group.slabs.find(slab);
  if (known == group.slabs.end()) return;  // one it was never sent
  std::uint64_t& said = mapped ? known->second.mapped : known->second.unmapped;
  said |= std::uint64_t{1} << peer.rank;
  if (said != group.everyone()) return;
  if (mapped) {
    feed(core::SlabMapped{peer.group, slab});
  } else {
    group.slabs.erase(known);
    feed(core::SlabUnmapped{peer.group, slab});
  }
}

void Daemon::raise_fences(EngineId engine) {
  const auto found = groups_.find(engine);
  if (found == groups_.end()) return;
  shm::ServedClientPage& raised = found->second.fences->page();
  each_rank(engine, [&](const Peer& peer) {
    kernels::publish({&peer.page->fence_h2d(), raised.fence_h2d().load()});
    kernels::publish({&peer.page->fence_d2h(), raised.fence_d2h().load()});
  });
}

// The others hold what the one that went held a share of: none can go on without it.
void Daemon::end_group(Peer& first, bool died) {
  Group& group = groups_.at(first.group);
  feed(core::Dying{first.group, !died});
  if (group.ended()) return;
  group.ended_at = clock_.now();
  tell(core::Note::Level::kInfo, first.group,
       called(group) + " ends with its rank " + std::to_string(first.rank));
  each_rank(first.group, [&](Peer& peer) { silence(peer); });
}

void Daemon::hear_goodbye(Peer& peer) {
  for (int i = 0; i < kFramesATurn; ++i) {
    const auto frame = peer.connection.receive();
    if (!frame.ok() && frame.error().code == ErrorCode::kWouldBlock) return;
    if (!frame.ok()) return end_silenced(peer);
    const auto message = wire::decode_attach(frame->bytes());
    if (!message.ok()) return end_silenced(peer);
    if (std::holds_alternative<wire::Goodbye>(*message)) {
      end_session(peer);
      return remove_rank(peer.engine);
    }
  }
}

// It may still write what it has mapped: its process tells when that is over.
void Daemon::end_silenced(Peer& peer) {
  end_session(peer);
  feed(core::Dying{peer.group});
}

void Daemon::remove_rank(EngineId rank) {
  const auto it = peers_.find(rank);
  const EngineId engine = it->second.group;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, it->second.pidfd.get(), nullptr);
  peers_.erase(it);
  const auto next = peers_.lower_bound(engine);
  if (next != peers_.end() && next->second.group == engine) return;
  groups_.erase(engine);
  feed(core::Dead{engine});
}

// A rank may hang in a call to one that is gone: it will never step, nor say goodbye.
void Daemon::evict_ended_groups(TimePoint now) {
  if (config_.evict_after.count() == 0) return;
  for (auto& [engine, group] : groups_) {
    if (!group.ended() || now - *group.ended_at < config_.evict_after) continue;
    group.ended_at = now;
    tell(
        core::Note::Level::kWarning, engine,
        called(group) + ": what is left of it is killed: its session ended engine.evict_after ago");
    for (const auto& [rank, peer] : peers_) {
      if (peer.group == engine) kill(peer);
    }
  }
}

}  // namespace kvd::daemon
