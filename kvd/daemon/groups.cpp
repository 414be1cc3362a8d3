#include <algorithm>
#include <string>

#include "ipc/wire/attach_codec.hpp"
#include "kernels/device/fence.hpp"
#include "kvd/daemon/daemon.hpp"

/// Tensor-parallel groups: what makes several processes one engine to the Controller.
namespace kvd::daemon {

namespace {

std::string called(const Group& group) { return "group " + std::to_string(group.number); }

bool same(const core::ModelClass& a, const core::ModelClass& b) { return a == b; }

}  // namespace

Result<core::AttachGrant> Daemon::enter_group(const wire::JoinGroup& join,
                                              const core::Attach& attach) {
  const auto fits = [&](const auto& entry) {
    const Group& group = entry.second;
    return group.number == join.group && group.domain == attach.domain && group.uid == attach.uid &&
           !group.ended;
  };
  auto found = std::find_if(groups_.begin(), groups_.end(), fits);
  if (found == groups_.end()) {
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
    found = groups_.emplace(engine, std::move(group)).first;
  }
  Group& group = found->second;
  if (!same(group.grant.model_class, *attach.model_class)) {
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
  const auto known = group.mapped.find(slab);
  if (known == group.mapped.end()) return;  // one it was never sent
  const std::uint64_t bit = std::uint64_t{1} << peer.rank;
  std::uint64_t& ranks = known->second;
  ranks = mapped ? ranks | bit : ranks & ~bit;
  if (mapped && ranks == group.everyone()) feed(core::SlabMapped{peer.group, slab});
  if (!mapped && ranks == 0) {
    group.mapped.erase(known);
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
  group.died = group.died || died;
  if (group.ended) return;
  group.ended = true;
  tell(core::Note::Level::kInfo, first.group,
       called(group) + " ends with its rank " + std::to_string(first.rank));
  each_rank(first.group, [&](Peer& peer) { silence(peer); });
}

void Daemon::hear_goodbye(Peer& peer) {
  for (;;) {
    const auto frame = peer.connection.receive();
    if (!frame.ok()) {
      if (frame.error().code != ErrorCode::kWouldBlock) end_silenced(peer);
      return;
    }
    const auto message = wire::decode_attach(frame->bytes());
    if (message.ok() && std::holds_alternative<wire::Goodbye>(*message)) {
      end_session(peer);
      return remove_rank(peer.engine);
    }
  }
}

// It may still write what it has mapped: its process tells when that is over.
void Daemon::end_silenced(Peer& peer) {
  end_session(peer);
  groups_.at(peer.group).died = true;
  feed(core::Dying{peer.group});
}

void Daemon::remove_rank(EngineId rank) {
  const auto it = peers_.find(rank);
  const EngineId engine = it->second.group;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, it->second.pidfd.get(), nullptr);
  peers_.erase(it);
  const auto next = peers_.lower_bound(engine);
  if (next != peers_.end() && next->second.group == engine) return;
  const bool died = groups_.at(engine).died;
  groups_.erase(engine);
  if (died) {
    feed(core::Dead{engine});
  } else {
    feed(core::Detach{engine});
  }
}

}  // namespace kvd::daemon
