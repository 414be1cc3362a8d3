#include <algorithm>
#include <tuple>

#include "kvd/core/state.hpp"

/// What nobody should see: requests that want memory, nobody who runs, and nothing under way that
/// could change it. Policies let somebody in where there is room, so the room is held by what does
/// not move: a region, another domain's loan, requests of which none can grow or leave. It is told
/// once, and after `standstill_after` the latest request ends, those that hold memory first.
namespace kvd::core {

namespace {

// One that runs and is not starved waits for its engine's step alone.
bool wants_memory(const Request& request) {
  if (request.forced_out || request.hopeless) return false;
  return request.queues() || request.claim != 0 || request.paused ||
         (request.runs() && request.starved);
}

}  // namespace

void Controller::State::watch_standstills() {
  std::erase_if(still, [&](const auto& entry) { return !domains.contains(entry.first); });
  for (const auto& [domain, kept] : domains) {
    if (!is_stuck(domain)) {
      still.erase(domain);
      continue;
    }
    Standstill& standstill = still.try_emplace(domain, Standstill{now, false}).first->second;
    const Nanoseconds lasts = now - standstill.since;
    const bool ends = config.standstill_after > Nanoseconds(0) && lasts >= config.standstill_after;
    if (!standstill.told && (ends || lasts >= config.step_timeout)) {
      standstill.told = true;
      tell_standstill(domain, standstill);
    }
    if (!ends) continue;
    give_up_latest(domain);
    standstill.since = now;  // the next one after as long again
  }
}

bool Controller::State::is_stuck(DomainId domain) {
  if (yielding.contains(domain)) return false;  // requests make way for a region
  for (const auto& [id, session] : sessions) {
    if (session.info.domain != domain || session.dying || !session.responsive) continue;
    if (session.stepping || session.plan.asked) return false;
  }
  // A silent engine of another domain, which is evicted for those that wait (eviction.cpp).
  const auto is_ended = [&](const auto& entry) {
    const Session& session = entry.second;
    return session.awaited_since && would_help(session.info.domain, domain, Bytes(0));
  };
  if (std::any_of(sessions.begin(), sessions.end(), is_ended)) return false;
  if (transfers.under_way(domain) || tiers.zeroes_for(domain)) return false;
  bool wants = false, silent = false;
  const auto look_at = [&](Request& r) {
    const bool responsive = session_of(r).responsive;
    // Its blocks come back when it steps or is evicted.
    silent = silent || (!responsive && r.holds_hbm());
    wants = wants || (responsive && wants_memory(r));
  };
  each_inside_in(domain, look_at);
  for (Request* r : domains.at(domain).line) {
    if (wants) break;
    look_at(*r);
  }
  return wants && !silent;
}

void Controller::State::tell_standstill(DomainId domain, const Standstill& standstill) {
  ++counters.standstills;
  Bytes wanted;
  EngineId engine;
  std::size_t count = 0;
  each_request_in(domain, [&](Request& r) {
    if (!wants_memory(r)) return;
    if (count++ == 0) engine = r.key.engine;
    wanted = std::max(wanted, need_bytes(r));
  });
  note(Note::Level::kWarning, engine,
       std::to_string(count) + " requests wait for memory and none of their domain has run for " +
           std::to_string(to_seconds(now - standstill.since)) + " s; HBM has " +
           std::to_string(hbm.available(domain).value) + " bytes for them, DRAM " +
           std::to_string(dram.available(domain).value) + ", the largest needs " +
           std::to_string(wanted.value) +
           ": free regions, enlarge pool.hbm or pool.dram, or raise the domain's quota");
}

// The end of one that holds memory helps the others.
void Controller::State::give_up_latest(DomainId domain) {
  const auto rank = [](const Request& r) {
    return std::tuple(r.hbm_slots() + r.dram_slots() > 0, r.arrived, r.key);
  };
  Request* latest = nullptr;
  each_request_in(domain, [&](Request& r) {
    if (!wants_memory(r) || !session_of(r).responsive) return;
    if (!latest || rank(r) > rank(*latest)) latest = &r;
  });
  if (!latest) return;
  latest->hopeless = true;
  ++counters.requests_given_up;
  note(Note::Level::kWarning, latest->key.engine,
       "request " + std::to_string(latest->key.request.value) +
           " ends with OutOfMemory: nobody of its domain could go on");
}

// At its engine's step, so that reports of it have been taken and the reply tells of its end.
void Controller::State::end_given_up(Session& session) {
  for (Request* r : std::vector(session.active)) {
    if (!r->hopeless) continue;
    session.given_up.push_back(r->key.request);
    remove(*r);
  }
}

}  // namespace kvd::core
