#include "kvd/daemon/service/rings.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "kvd/daemon/sessions/ring_peer.hpp"

namespace kvd::daemon {

namespace {

/// How long rings may keep the loop before sockets and timers get their turn.
constexpr Nanoseconds kRingTurn = std::chrono::milliseconds(1);

}  // namespace

void Rings::wake(EngineId engine) {
  Peer* peer = uses_.sessions.connected(engine);
  if (!peer || !peer->ring) return;
  if (std::find(awake_.begin(), awake_.end(), engine) == awake_.end()) awake_.push_back(engine);
}

bool Rings::take_turn() {
  const TimePoint until = uses_.clock.now() + kRingTurn;
  do {
    if (serve_all(until) || filled_while_looking()) continue;
    std::erase_if(awake_, [&](EngineId engine) {
      Peer* peer = uses_.sessions.connected(engine);
      return !peer || peer->ring->fall_asleep();
    });
    return !awake_.empty();
  } while (!uses_.commands.held() && uses_.clock.now() < until);
  return true;
}

// Ordered by the time that their domains' commands have used; rings of one domain keep their order.
void Rings::sort_awake() {
  if (awake_.size() < 2) return;
  const auto taken = [&](EngineId engine) {
    const Peer* peer = uses_.sessions.connected(engine);
    return peer ? uses_.turns.taken(peer->domain) : Nanoseconds(0);
  };
  std::stable_sort(awake_.begin(), awake_.end(),
                   [&](EngineId a, EngineId b) { return taken(a) < taken(b); });
}

// Takes one command of each domain, from the ring of it that was served longest ago. Returns
// whether there was one.
bool Rings::serve_all(TimePoint until) {
  sort_awake();
  std::set<DomainId> served;
  TimePoint now = uses_.clock.now();
  for (const EngineId engine : std::vector(awake_)) {
    const Peer* peer = uses_.sessions.connected(engine);  // a command may have dropped it
    if (!peer || served.contains(peer->domain)) continue;
    const DomainId domain = peer->domain;
    if (!serve(engine)) continue;
    served.insert(domain);
    const TimePoint begin = std::exchange(now, uses_.clock.now());
    uses_.turns.took(domain, now - begin);
    const auto at = std::find(awake_.begin(), awake_.end(), engine);
    if (at != awake_.end()) std::rotate(at, at + 1, awake_.end());
    if (now >= until) break;
  }
  return !served.empty();
}

bool Rings::serve(EngineId engine) {
  Peer* peer = uses_.sessions.connected(engine);
  const auto frame = peer->ring->receive();
  if (!frame.ok()) {
    peer->ended ? uses_.ends.end_silenced(*peer) : uses_.ends.drop(engine, frame.error().message);
    return false;
  }
  if (!*frame) return false;
  uses_.commands.on_command({ring_peer(engine), **frame, peer->process.uid, peer->process.pid});
  return true;
}

// Engines in the middle of a step with streamed layers are looked at as well, and copies for them.
bool Rings::filled_while_looking() {
  if (uses_.spin.count() == 0) return false;
  if (awake_.empty() && !uses_.copies.awaits_progress()) return false;
  const TimePoint until = uses_.clock.now() + uses_.spin;
  do {
    for (const EngineId engine : awake_) {
      Peer* peer = uses_.sessions.connected(engine);
      if (peer && !peer->ring->empty()) return true;
    }
    if (uses_.copies.in_motion()) uses_.copies.take_finished();
  } while (uses_.clock.now() < until);
  return false;
}

}  // namespace kvd::daemon
