#include "kvd/core/deciding/standstills.hpp"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ipc/vocabulary/human.hpp"

namespace kvd::core {

namespace {

// A request that runs and is not starved waits for its engine's step alone.
bool wants_memory(const Request& request) {
  if (request.forced_out() || request.verdict == Verdict::kHopeless) return false;
  return request.queues() || request.order.claim != 0 || request.paused() ||
         (request.runs() && request.starved);
}

bool contains(const std::vector<DeviceId>& devices, DeviceId device) {
  return std::find(devices.begin(), devices.end(), device) != devices.end();
}

}  // namespace

void Standstills::watch() {
  std::erase_if(
      still_, [&](const auto& entry) { return !requests_.domains().contains(entry.first.domain); });
  for (const auto& [domain, kept] : requests_.domains()) {
    for (const auto& [device, progress] : kept.progress) watch({domain, device});
  }
}

void Standstills::watch(Share share) {
  const std::vector<DeviceId> devices = standing(share);
  if (devices.empty()) {
    still_.erase(share);
    return;
  }
  const Standstill fresh{progress_on(share.domain, devices), context_.now, false};
  Standstill& standstill = still_.try_emplace(share, fresh).first->second;
  if (standstill.progress != fresh.progress) standstill = fresh;
  const Nanoseconds lasts = context_.now - standstill.since;
  const bool ends = context_.config.standstill_after > Nanoseconds(0) &&
                    lasts >= context_.config.standstill_after;
  if (!standstill.told && (ends || lasts >= context_.config.step_timeout)) {
    standstill.told = true;
    tell(share, standstill);
  }
  if (ends && another_makes_way(share)) {
    standstill.since = context_.now;  // what it makes way for comes in a moment after
  } else if (ends) {
    give_up_latest(share);
  }
}

// A request that makes progress on one of them may let those of the share go on.
std::vector<DeviceId> Standstills::standing(Share share) {
  std::vector<DeviceId> devices{share.device};
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const Share at{share.domain, devices[i]};
    if (moves(at)) return {};
    add_awaited(at, devices);
  }
  return somebody_wants(share) ? devices : std::vector<DeviceId>();
}

// A domain with more than its part lets nobody in, so each of its requests that ends makes way.
bool Standstills::another_makes_way(Share share) {
  bool found = false;
  for (const auto& [domain, kept] : requests_.domains()) {
    const Share other{domain, share.device};
    if (domain == share.domain || !supply_.over_part(other)) continue;
    requests_.each_inside_on(other, [&](const Request& r) {
      const bool ends = r.runs() && !r.starved && requests_.session_of(r).life.responsive;
      found = found || ends;
    });
  }
  return found;
}

// A group comes in on all its devices at once. A request that this device has room for waits for
// its turn on the others, and requests behind it here wait with it.
void Standstills::add_awaited(Share share, std::vector<DeviceId>& devices) {
  const auto waits_elsewhere = [&](const Request* r) {
    if (!wants_memory(*r)) return false;
    const Bytes has = memory_.hbm_bytes(*r, share.device);
    return store_.cache.available(share.domain, Tier::kHbm, share.device) + has >=
           needs_.to_run(*r, share.device);
  };
  for (const auto& [id, session] : requests_.sessions()) {
    if (session.info.domain != share.domain || !session.on(share.device)) continue;
    if (!session.devices().several() || !session.life.responsive) continue;
    if (std::none_of(session.active.begin(), session.active.end(), waits_elsewhere)) continue;
    for (const DeviceId device : session.devices().all()) {
      if (!contains(devices, device)) devices.push_back(device);
    }
  }
}

// The number changes when a request makes progress there.
std::uint64_t Standstills::progress_on(DomainId domain,
                                       const std::vector<DeviceId>& devices) const {
  std::uint64_t latest = 0;
  for (const auto& [device, progress] : requests_.domains().at(domain).progress) {
    if (contains(devices, device)) latest = std::max(latest, progress);
  }
  return latest;
}

// Some request runs there, or something is under way that may let others run.
bool Standstills::moves(Share share) {
  // Requests make way for a region, which has a deadline.
  if (supply_.retires(share) && !supply_.shrinks(share)) return true;
  for (const auto& [id, session] : requests_.sessions()) {
    if (session.info.domain != share.domain || !session.on(share.device)) continue;
    if (session.life.dying || !session.life.responsive) continue;
    if (session.iterations.stepping) return true;
    if (session.streaming && session.plan.asked) return true;
  }
  // A silent engine of another domain is evicted for those that wait (silence.hpp).
  const auto is_ended = [&](const auto& entry) {
    const Session& session = entry.second;
    return session.life.awaited_since && session.on(share.device) &&
           silence_.would_help(session.info.domain, share, Bytes(0));
  };
  if (std::any_of(requests_.sessions().begin(), requests_.sessions().end(), is_ended)) return true;
  if (store_.transfers.under_way(share.domain, share.device)) return true;
  if (store_.compaction.under_way(share.domain)) return true;
  if (store_.tiers.zeroes_for(share.domain)) return true;
  bool silent = false;  // its blocks come back when it steps or is evicted
  requests_.each_inside_on(share, [&](const Request& r) {
    silent = silent || (!requests_.session_of(r).life.responsive && r.holds_hbm());
  });
  return silent;
}

bool Standstills::somebody_wants(Share share) {
  const auto wants = [&](const Request& r) {
    return requests_.session_of(r).life.responsive && wants_memory(r);
  };
  bool found = false;
  requests_.each_inside_on(share, [&](const Request& r) { found = found || wants(r); });
  const Line& line = requests_.domains().at(share.domain).line;
  return found || std::any_of(line.begin(), line.end(), [&](const Request* r) {
           return requests_.session_of(*r).on(share.device) && wants(*r);
         });
}

void Standstills::tell(Share share, const Standstill& standstill) {
  ++context_.counters.standstills;
  Bytes wanted;
  EngineId engine;
  std::size_t count = 0;
  requests_.each_request_in(share.domain, [&](Request& r) {
    if (!wants_memory(r) || !requests_.session_of(r).on(share.device)) return;
    if (count++ == 0) engine = r.key.engine;
    wanted = std::max(wanted, needs_.to_run(r, share.device));
  });
  const auto available = [&](Tier tier, DeviceId device) {
    return human_size(store_.cache.available(share.domain, tier, device));
  };
  context_.note(Note::Level::kWarning, engine,
                "domain '" + name_of(share.domain) + "': " + std::to_string(count) +
                    " requests wait for memory and none of their domain has run for " +
                    human_time(context_.now - standstill.since) + "; HBM has " +
                    available(Tier::kHbm, share.device) + " for them, DRAM " +
                    available(Tier::kDram, DeviceId()) + ", the largest needs " +
                    human_size(wanted) + "; HBM is with " + holders(share.device) +
                    ": free regions, enlarge pool.hbm or pool.dram, or raise the domain's quota");
}

std::string Standstills::name_of(DomainId domain) const {
  for (const auto& [id, session] : requests_.sessions()) {
    if (session.info.domain == domain) return session.info.domain_name;
  }
  return std::to_string(domain.value);
}

// Names the three that hold the most of it.
std::string Standstills::holders(DeviceId device) {
  std::vector<std::pair<Bytes, const Session*>> all;
  for (const auto& [id, session] : requests_.sessions()) {
    if (!session.on(device)) continue;
    if (const Bytes held = silence_.held_hbm(session); held > Bytes(0)) {
      all.emplace_back(held, &session);
    }
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(all.size(), 3); ++i) {
    const auto& [held, session] = all[i];
    text += (text.empty() ? "engine '" : ", '") + session->info.name + "' of '" +
            session->info.domain_name + "' (" + human_size(held) + ")";
  }
  return text.empty() ? "no engine" : text;
}

// Prefers a request that holds memory: its end helps the others.
void Standstills::give_up_latest(Share share) {
  const auto rank = [](const Request& r) {
    return std::tuple(r.hbm_slots() + r.dram_slots() > 0, r.times.arrived, r.key);
  };
  Request* latest = nullptr;
  requests_.each_request_in(share.domain, [&](Request& r) {
    const Session& owner = requests_.session_of(r);
    if (!wants_memory(r) || !owner.on(share.device) || !owner.life.responsive) return;
    if (!latest || rank(r) > rank(*latest)) latest = &r;
  });
  if (!latest) return;
  latest->verdict = Verdict::kHopeless;
  // The next one ends after as long again, wherever the end of this one may help.
  for (auto& [at, standstill] : still_) {
    const bool helps = at.domain == share.domain && requests_.session_of(*latest).on(at.device);
    if (helps) standstill.since = context_.now;
  }
  ++context_.counters.ended.for_memory;
  context_.note(Note::Level::kWarning, latest->key.engine,
                "request " + std::to_string(latest->key.request.value) +
                    " ends with OutOfMemory: nobody of its domain could go on");
}

void Standstills::end_given_up(Session& session) {
  for (Request* r : std::vector(session.active)) {
    if (r->verdict != Verdict::kHopeless) continue;
    session.given_up.push_back({r->key.request, Hold::kOutOfMemory});
    memory_.end(*r);
  }
}

}  // namespace kvd::core
