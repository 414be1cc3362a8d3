#include "kvd/daemon/turns.hpp"

#include "ipc/vocabulary/round_robin.hpp"

namespace kvd::daemon {

std::optional<transport::PeerId> Turns::next() {
  if (waiting_.empty()) return std::nullopt;
  const auto domain = next_in_turn(waiting_, served_);
  const transport::PeerId peer = domain->second.front();
  domain->second.pop_front();
  if (domain->second.empty()) waiting_.erase(domain);
  return peer;
}

}  // namespace kvd::daemon
