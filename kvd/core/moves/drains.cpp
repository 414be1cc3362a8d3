#include "kvd/core/moves/drains.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "ipc/vocabulary/human.hpp"

namespace kvd::core {

namespace {

/// Requests that have begun, or what counts in their place.
std::uint64_t left_of(const Session& session) {
  if (session.class_id) return session.active.size();
  if (session.placed) {
    const auto& all = session.placed->all;
    return static_cast<std::uint64_t>(std::count_if(
        all.begin(), all.end(), [](const PlacedRequest& each) { return each.begun(); }));
  }
  return session.leases.regions.size();
}

bool is_past(const std::optional<TimePoint>& deadline, TimePoint now) {
  return deadline && now >= *deadline;
}

}  // namespace

void Drains::on_drain(const Drain& drain) {
  const auto session = requests_.sessions().find(drain.engine);
  if (drain.engine && session == requests_.sessions().end()) return;
  auto& draining = drain.engine ? session->second.life.draining : node_;
  if (!drain.engine) write_all(drain.to_remote && !drain.cancel);
  if (drain.cancel) {
    if (!draining) return;
    draining.reset();
    return put_back(drain.engine);
  }
  draining = drained(drain, draining);
  for (auto& [id, one] : requests_.sessions()) {
    if (!drain.engine || id == drain.engine) one.life.drained_told = false;
  }
  const std::string until =
      drain.patience ? "; what is left ends in " + human_time(*drain.patience) : std::string();
  context_.note(Note::Level::kInfo, drain.engine,
                (drain.engine ? "engine '" + session->second.info.name + "' is"
                              : "the node with all its engines is") +
                    std::string(" taken out of service: it gets nothing new") + until);
}

void Drains::write_all(bool all) {
  if (!disk_.remote().on() || all == disk_.remote().writes_all()) return;
  all ? disk_.remote().write_all() : disk_.remote().write_by_rule();
  before_ = {};
  before_ = written();
}

RemoteWrites Drains::written() const {
  const Counters::Prefixes::Lower& counters = context_.counters.prefixes.lower[kRemoteTier];
  const std::uint64_t copies = copies_.idle() ? 0 : 1;
  return {disk_.remote().left() + copies, counters.stores - before_.stored,
          counters.store_failures + counters.refused - before_.lost};
}

std::optional<RemoteWrites> Drains::to_remote() const {
  return disk_.remote().writes_all() ? std::optional(written()) : std::nullopt;
}

bool Drains::copies_ahead() const {
  if (disk_.remote().writes_all()) return disk_.remote().wrote_all();
  return context_.tuning.rotation.eager;
}

Draining Drains::drained(const Drain& drain, const std::optional<Draining>& before) const {
  Draining out{before ? before->since : context_.now, std::nullopt};
  if (drain.patience) out.deadline = context_.now + *drain.patience;
  return out;
}

void Drains::put_back(EngineId engine) {
  context_.note(Note::Level::kInfo, engine,
                engine ? "the engine is back in service" : "the node is back in service");
}

Status Drains::takes_engines() const {
  if (!node_) return {};
  return make_error(ErrorCode::kUnavailable,
                    "this kvd is taken out of service and takes no engines: attach to another "
                    "one, or put it back with kvdctl drain node --cancel");
}

void Drains::end_left(Session& session) {
  const auto now = status(session);
  if (!now) return;
  const bool all = is_past(now->deadline, context_.now);
  for (Request* r : std::vector(session.active)) {
    if (!all && !r->waits()) continue;
    // Its engine may be computing it. So it gets no more memory, and ends when that iteration is
    // over.
    r->verdict = Verdict::kDrained;
    if (r->progress.last_iteration > session.iterations.finished) continue;
    session.given_up.push_back({r->key.request, Hold::kDrained});
    ++context_.counters.ended.drained;
    memory_.end(*r);
  }
}

void Drains::watch() {
  for (auto& [id, session] : requests_.sessions()) {
    if (session.life.dying || session.life.drained_told || !drains(session)) continue;
    if (left_of(session) > 0) continue;
    session.life.drained_told = true;
    context_.note(Note::Level::kInfo, id,
                  "engine '" + session.info.name + "' has nothing left and may be stopped");
  }
}

std::optional<DrainStatus> Drains::status(const Session& session) const {
  const std::optional<Draining>& own = session.life.draining;
  if (!own && !node_) return std::nullopt;
  DrainStatus out{own ? own->since : node_->since, std::nullopt, left_of(session)};
  for (const std::optional<Draining>* one : {&own, &node_}) {
    if (!*one) continue;
    out.since = std::min(out.since, (*one)->since);
    const auto& deadline = (*one)->deadline;
    if (deadline) out.deadline = std::min(out.deadline.value_or(*deadline), *deadline);
  }
  return out;
}

std::optional<DrainStatus> Drains::status() const {
  if (!node_) return std::nullopt;
  const auto& all = std::as_const(requests_).sessions();
  const auto left = std::count_if(all.begin(), all.end(),
                                  [](const auto& entry) { return left_of(entry.second) > 0; });
  return DrainStatus{node_->since, node_->deadline, static_cast<std::uint64_t>(left)};
}

}  // namespace kvd::core
