#include "kvd/mover/job_turns.hpp"

#include <algorithm>

namespace kvd::mover {
namespace {

/// The entry of an ordered map whose turn it is: the one after the key served last, which becomes
/// its key. Precondition: the map is not empty.
template <class Map>
typename Map::iterator next_in_turn(Map& map, typename Map::key_type& served) {
  auto next = map.upper_bound(served);
  if (next == map.end()) next = map.begin();
  served = next->first;
  return next;
}

}  // namespace

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
