#include "kvd/core/deciding/silence.hpp"

#include <algorithm>
#include <utility>

#include "ipc/vocabulary/human.hpp"

namespace kvd::core {

void Silence::check(Session& session) {
  if (session.life.responsive && session.life.silent_since) {
    context_.note(Note::Level::kInfo, session.id,
                  "engine '" + session.info.name + "' is back after " +
                      human_time(context_.now - *session.life.silent_since) + " of silence");
    session.life.silent_since.reset();
  }
  // Silence counts only while the engine owes something: its heartbeat (level 1), or a step for
  // work it was given or for requests it queued (level 3). An engine whose requests have all ended,
  // by its own command too, steps no more until others come.
  const bool works = session.iterations.stepping && !session.active.empty();
  bool owes = !session.class_id || works;
  TimePoint since = session.class_id ? session.life.last_step : session.life.last_beat;
  TimePoint queued =
      session.line.empty() ? TimePoint::max() : (*session.line.begin())->times.arrived;
  owes |= std::any_of(session.line.begin(), session.line.end(),
                      [](const Request* r) { return r->queues(); });
  requests_.each_inside_of(session.id, [&](Request& r) {
    owes |= r.queues() || r.order.claim != 0 || r.holds_hbm();
    queued = std::min(queued, r.times.arrived);
  });
  if (!owes) session.life.responsive = true;
  // An engine that has not stepped because it had no requests is not late with its first ones.
  if (session.class_id && !works && owes) since = std::max(since, queued);
  if (!session.life.responsive || session.life.dying || !owes ||
      context_.now - since < context_.config.step_timeout)
    return;
  session.life.responsive = false;
  session.life.silent_since = since;
  drop_claims(session);
  context_.note(Note::Level::kWarning, session.id,
                "engine '" + session.info.name + "' has been silent for " +
                    human_time(context_.now - since) +
                    "; its blocks leave the supply until it steps again");
}

void Silence::evict(Session& session) {
  if (context_.config.evict_after.count() == 0) return;
  if (session.life.dying) return evict_rest(session);
  const bool silent = !session.life.responsive;
  if (!silent || held_hbm(session) == Bytes(0) || !is_awaited(session)) {
    session.life.awaited_since.reset();
    session.life.evicted = false;
  } else if (!session.life.awaited_since) {
    session.life.awaited_since = context_.now;
  } else if (context_.now - *session.life.awaited_since >= context_.config.evict_after) {
    session.life.awaited_since = context_.now;
    if (!std::exchange(session.life.evicted, true)) {
      context_.note(Note::Level::kWarning, session.id,
                    "engine '" + session.info.name +
                        "' is to be killed: it is silent, and others have waited for " +
                        "what it holds longer than engine.evict_after (" +
                        human_time(context_.config.evict_after) + ")");
    }
    context_.emit(Evict{session.id});
  }
}

// A rank may hang in a call to a rank that is gone: it will never step nor say goodbye.
void Silence::evict_rest(Session& group) {
  if (!group.ranks || context_.now - group.life.dying_since < context_.config.evict_after) return;
  group.life.dying_since = context_.now;
  context_.note(Note::Level::kWarning, group.id,
                "what is left of the group of engine '" + group.info.name +
                    "' is to be killed: its session ended engine.evict_after ago");
  context_.emit(Evict{group.id});
}

Bytes Silence::held_hbm(const Session& session) const {
  Bytes sum = regions_.region_bytes(session);
  for (const Request* r : session.active) sum += memory_.hbm_bytes(*r);
  return sum;
}

// The least memory of the device that some request or region of the session waits for in vain;
// none: nothing waits.
std::optional<Bytes> Silence::unmet_need(const Session& session, DeviceId device) {
  if (!session.life.responsive || session.life.dying) return std::nullopt;
  std::optional<Bytes> least;
  const auto add = [&](Bytes need) { least = least ? std::min(*least, need) : need; };
  for (const PendingRegion& pending : regions_.pending()) {
    if (pending.engine == session.id) add(pending.bytes);
  }
  // An engine that was refused a region asks again in a while.
  if (session.leases.refused &&
      context_.now - session.leases.refused->at < context_.config.step_timeout) {
    add(session.leases.refused->bytes);
  }
  const Bytes available = store_.cache.available(session.info.domain, Tier::kHbm, device);
  requests_.each_request_of(session.id, [&](Request& r) {
    const bool claims = r.order.claim != 0 && !r.order.awaits_mapping;
    const Bytes need = needs_.to_run(r, device);
    if (claims || r.starved || (r.queues() && available < need)) add(need);
  });
  return least;
}

// Inside a domain all memory is shared. Another domain gets only what is lent, and no more than its
// own maximum.
bool Silence::would_help(DomainId holder, Share waiting, Bytes need) const {
  if (holder == waiting.domain) return true;
  const auto quota = context_.config.hbm_quotas.find(holder);
  const Bytes guarantee =
      quota == context_.config.hbm_quotas.end() ? Bytes(0) : quota->second.guarantee;
  const pool::TierPool& hbm = store_.hbm.of(waiting.device);
  return hbm.used(holder) > guarantee &&
         hbm.used(waiting.domain) + need <= needs_.hbm_limit(waiting);
}

bool Silence::is_awaited(const Session& holder) {
  for (auto& [id, session] : requests_.sessions()) {
    if (id == holder.id) continue;
    for (const DeviceId device : session.devices().all()) {
      if (!holder.on(device)) continue;
      const auto need = unmet_need(session, device);
      const Share share{session.info.domain, device};
      if (need && would_help(holder.info.domain, share, *need)) return true;
    }
  }
  return false;
}

void Silence::drop_claims(Session& session) {
  requests_.each_request_of(session.id, [&](Request& r) {
    requests_.drop_claim(r);
    r.order.awaits_mapping = false;
    if (!r.waits()) return;
    r.layerwise = false;
    r.layers.away.clear();
  });
  store_.tiers.mappings().stop_awaiting(session.id);
}

}  // namespace kvd::core
