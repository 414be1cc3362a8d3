#include "kvd/daemon/workers/turns.hpp"

namespace kvd::daemon {

std::optional<transport::PeerId> Turns::next() {
  if (waiting_.empty()) return std::nullopt;
  const auto domain = fair_.next(waiting_);
  served_ = domain->first;
  const transport::PeerId peer = domain->second.front();
  domain->second.pop_front();
  if (domain->second.empty()) waiting_.erase(domain);
  return peer;
}

}  // namespace kvd::daemon
