#include "kvd/daemon/turns.hpp"

#include <tuple>

namespace kvd::daemon {

void Turns::add(DomainId domain, transport::PeerId peer) {
  Line& line = lines_[domain];
  if (line.peers.empty()) line.taken = std::max(line.taken, level_);
  line.peers.push_back(peer);
  ++waiting_;
}

std::optional<transport::PeerId> Turns::next() {
  if (waiting_ == 0) return std::nullopt;
  forget_idle();
  const auto rank = [&](const auto& entry) {
    return std::tuple(entry.second.peers.empty(), entry.second.taken, entry.first <= served_);
  };
  const auto least =
      std::min_element(lines_.begin(), lines_.end(),
                       [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
  Line& line = least->second;
  served_ = least->first;
  level_ = std::max(level_, line.taken);
  const transport::PeerId peer = line.peers.front();
  line.peers.pop_front();
  --waiting_;
  return peer;
}

Nanoseconds Turns::taken(DomainId domain) const {
  const auto line = lines_.find(domain);
  return line == lines_.end() ? level_ : std::max(line->second.taken, level_);
}

void Turns::took(DomainId domain, Nanoseconds time) {
  Line& line = lines_[domain];
  line.taken = std::max(line.taken, level_);
  level_ = line.taken;
  line.taken += time;
  forget_idle();
}

// A domain with no command, and no more time taken than the others, is as if it had never been
// here.
void Turns::forget_idle() {
  std::erase_if(lines_, [&](const auto& entry) {
    return entry.second.peers.empty() && entry.second.taken <= level_;
  });
}

}  // namespace kvd::daemon
