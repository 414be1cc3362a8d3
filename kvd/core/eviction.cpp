#include <algorithm>
#include <optional>

#include "kvd/core/state.hpp"

/// Which silent engine is to end: one that holds HBM, and for config.evict_after others have waited
/// for memory that its end would give them. The shell ends the process.
/// Source: kvd/DESIGN.md "A death".
namespace kvd::core {

Bytes Controller::State::held_hbm(const Session& session) const {
  Bytes sum = region_bytes(session);
  for (const Request* r : session.active) sum += hbm_bytes(*r);
  return sum;
}

// The least memory that somebody of the session waits for in vain; none: nobody does.
std::optional<Bytes> Controller::State::unmet_need(const Session& session) {
  if (!session.responsive || session.dying) return std::nullopt;
  std::optional<Bytes> least;
  const auto add = [&](Bytes need) { least = least ? std::min(*least, need) : need; };
  for (const PendingRegion& pending : pending_regions) {
    if (pending.engine == session.id) add(pending.bytes);
  }
  // An engine that was refused a region asks again in a while.
  if (session.refused && now - session.refused->at < config.step_timeout) {
    add(session.refused->bytes);
  }
  const Bytes available = hbm.available(session.info.domain);
  each_request_of(session.id, [&](Request& r) {
    const bool claims = r.claim != 0 && !r.awaits_mapping;
    if (claims || r.starved || (r.queues() && available < need_bytes(r))) add(need_bytes(r));
  });
  return least;
}

// Inside a domain all memory is everybody's. Another domain gets only what is lent, and no more
// than its own maximum.
bool Controller::State::would_help(DomainId holder, DomainId waiting, Bytes need) const {
  if (holder == waiting) return true;
  const auto quota = config.hbm_quotas.find(holder);
  const Bytes guarantee = quota == config.hbm_quotas.end() ? Bytes(0) : quota->second.guarantee;
  return hbm.used(holder) > guarantee && hbm.used(waiting) + need <= hbm_limit(waiting);
}

bool Controller::State::is_awaited(const Session& holder) {
  for (auto& [id, session] : sessions) {
    if (id == holder.id) continue;
    const auto need = unmet_need(session);
    if (need && would_help(holder.info.domain, session.info.domain, *need)) return true;
  }
  return false;
}

void Controller::State::evict_silent(Session& session) {
  if (config.evict_after.count() == 0) return;
  const bool silent = !session.responsive && !session.dying;
  if (!silent || held_hbm(session) == Bytes(0) || !is_awaited(session)) {
    session.awaited_since.reset();
  } else if (!session.awaited_since) {
    session.awaited_since = now;
  } else if (now - *session.awaited_since >= config.evict_after) {
    session.awaited_since = now;
    note(Note::Level::kWarning, session.id,
         "engine '" + session.info.name + "' is killed: it is silent, and others have waited for " +
             "what it holds longer than engine.evict_after (" +
             std::to_string(to_seconds(config.evict_after)) + " s)");
    emit(Evict{session.id});
  }
}

}  // namespace kvd::core
