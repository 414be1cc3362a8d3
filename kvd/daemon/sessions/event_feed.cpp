#include "kvd/daemon/sessions/event_feed.hpp"

#include <vector>

namespace kvd::daemon {

void EventFeed::feed(core::Event event, TimePoint at) {
  waiting_.emplace_back(std::move(event), at);
  if (feeding_) return;
  feeding_ = true;
  while (!waiting_.empty()) {
    const auto [next, when] = std::move(waiting_.front());
    waiting_.pop_front();
    std::vector<core::Effect> effects;
    controller_->on(next, when, effects);
    for (const core::Effect& effect : effects) perform_(effect);
  }
  feeding_ = false;
}

}  // namespace kvd::daemon
