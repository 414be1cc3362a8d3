#include "kvd/daemon/turns.hpp"

#include "ipc/vocabulary/round_robin.hpp"

namespace kvd::daemon {

bool Turns::add(DomainId domain, EngineId session, const transport::Incoming& incoming) {
  std::size_t& held = of_session_[session];
  if (held >= kMostOfASession) return false;
  ++held;
  waiting_[domain].push_back({incoming.peer,
                              {incoming.frame.begin(), incoming.frame.end()},
                              incoming.uid,
                              incoming.pid,
                              session});
  return true;
}

std::optional<Turns::Held> Turns::next() {
  if (waiting_.empty()) return std::nullopt;
  const auto domain = next_in_turn(waiting_, served_);
  Held held = std::move(domain->second.front());
  domain->second.pop_front();
  if (domain->second.empty()) waiting_.erase(domain);
  const auto count = of_session_.find(held.session);
  if (--count->second == 0) of_session_.erase(count);
  return held;
}

}  // namespace kvd::daemon
