#include "kvd/daemon/sessions/session_table.hpp"

#include <algorithm>
#include <utility>

namespace kvd::daemon {

namespace {

template <class Wanted>
SessionCounts counts_of(const std::map<EngineId, Peer>& peers, Wanted wanted) {
  SessionCounts counts;
  for (const auto& [engine, peer] : peers) {
    if (wanted(peer)) ++(peer.ended ? counts.ended : counts.open);
  }
  return counts;
}

}  // namespace

void SessionTable::add(Peer peer) {
  const EngineId engine = peer.engine;
  generations_[peer.generation] = engine;
  peers_.emplace(engine, std::move(peer));
}

Peer* SessionTable::any(EngineId engine) {
  const auto it = peers_.find(engine);
  return it == peers_.end() ? nullptr : &it->second;
}

Peer* SessionTable::find(EngineId engine) {
  Peer* peer = any(engine);
  return peer && !peer->ended ? peer : nullptr;
}

Peer* SessionTable::connected(EngineId engine) {
  Peer* peer = any(engine);
  return peer && peer->connected() ? peer : nullptr;
}

Peer* SessionTable::of_generation(Generation generation) {
  const auto it = generations_.find(generation);
  return it == generations_.end() ? nullptr : find(it->second);
}

bool SessionTable::has_rank_of(EngineId group) const {
  const auto next = peers_.lower_bound(group);
  return next != peers_.end() && next->second.group == group;
}

bool SessionTable::has_domain(DomainId domain) const {
  return std::any_of(peers_.begin(), peers_.end(),
                     [&](const auto& entry) { return entry.second.domain == domain; });
}

SessionCounts SessionTable::counts() const {
  return counts_of(peers_, [](const Peer&) { return true; });
}

SessionCounts SessionTable::counts(DomainId domain) const {
  return counts_of(peers_, [&](const Peer& peer) { return peer.domain == domain; });
}

std::size_t SessionTable::ended_of_process(pid_t process, uid_t uid) const {
  const auto is_its = [&](const Peer& peer) {
    return peer.process.pid == process && peer.process.uid == uid;
  };
  return counts_of(peers_, is_its).ended;
}

}  // namespace kvd::daemon
