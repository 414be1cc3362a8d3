#include "kvd/mover/job_turns.hpp"

#include <algorithm>

#include "ipc/vocabulary/round_robin.hpp"

namespace kvd::mover {

void JobTurns::add(const Owner& owner, Ticket job) {
  waiting_[owner.domain].by_engine[owner.engine].push_back(job);
}

std::optional<Ticket> JobTurns::next(std::optional<DomainId> but) {
  if (but ? !beside(*but) : empty()) return std::nullopt;
  Queues& queues = fair_.next(waiting_, but)->second;
  return next_in_turn(queues.by_engine, queues.served)->second.front();
}

void JobTurns::remove(const Owner& owner, Ticket job) {
  const auto domain = waiting_.find(owner.domain);
  auto& by_engine = domain->second.by_engine;
  const auto engine = by_engine.find(owner.engine);
  std::deque<Ticket>& jobs = engine->second;
  jobs.erase(std::find(jobs.begin(), jobs.end(), job));
  if (!jobs.empty()) return;
  by_engine.erase(engine);
  if (by_engine.empty()) waiting_.erase(domain);
}

}  // namespace kvd::mover
