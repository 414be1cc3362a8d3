#include "kvd/sim/world/link.hpp"

#include <algorithm>
#include <cmath>

namespace kvd::sim {
namespace {

// Service of less than a nanosecond is rounding.
constexpr double kNothing = 1e-9;

}  // namespace

const Link::Queued* Link::Lane::head() const {
  for (const auto& queue : queues) {
    if (!queue.empty()) return &queue.front();
  }
  return nullptr;
}

void Link::Lane::drop_head() {
  for (auto& queue : queues) {
    if (queue.empty()) continue;
    queue.pop_front();
    return;
  }
}

double Link::work(Direction direction, const Job& job) const {
  const double rate = direction == kH2d ? model_.h2d_bytes_s : model_.d2h_bytes_s;
  const double slot = model_.per_slot.count() + static_cast<double>(job.slot_bytes.value) / rate;
  return model_.per_copy.count() + static_cast<double>(job.slots) * slot;
}

// Both directions get the same share of the full rate.
double Link::speed() const {
  if (model_.shared_bytes_s <= 0 || !lanes_[kH2d].serves() || !lanes_[kD2h].serves()) return 1;
  return std::min(1.0, model_.shared_bytes_s / (model_.h2d_bytes_s + model_.d2h_bytes_s));
}

void Link::pass(TimePoint now) {
  const double elapsed = to_seconds(now - now_);
  now_ = now;
  if (elapsed <= 0) return;
  const double rate = speed();
  for (Lane& lane : lanes_) {
    Queued* head = lane.head();
    if (!head) continue;
    head->left -= elapsed * rate;
    head->served += elapsed;
    head->begun = true;
    lane.busy += Seconds(elapsed);
  }
}

void Link::add(Direction direction, const Job& job, TimePoint now) {
  pass(now);
  auto& queue = lanes_[direction].queues[static_cast<std::size_t>(job.priority)];
  const Queued entry{job, work(direction, job), 0, false};
  if (job.priority != Class::kStream) {
    queue.push_back(entry);
    return;
  }
  const auto later = [](const Job& a, const Queued& b) { return a.group < b.job.group; };
  queue.insert(std::upper_bound(queue.begin(), queue.end(), job, later), entry);
}

std::size_t Link::cancel(Ticket ticket, TimePoint now) {
  pass(now);
  auto& queue = lanes_[kH2d].queues[static_cast<std::size_t>(Class::kStream)];
  return std::erase_if(queue, [&](const Queued& q) { return q.job.ticket == ticket && !q.begun; });
}

TimePoint Link::next() const {
  TimePoint first = TimePoint::max();
  const double rate = speed();
  for (const Lane& lane : lanes_) {
    const Queued* head = lane.head();
    if (!head) continue;
    const double wait = std::max(0.0, head->left) / rate;
    first = std::min(first, now_ + Nanoseconds(static_cast<std::int64_t>(std::ceil(wait * 1e9))));
  }
  return first;
}

void Link::advance(TimePoint now, std::vector<Ended>& ended) {
  // Every end changes which copy is served and how fast, so time passes from one end to the next.
  for (TimePoint end = next(); end <= now; end = next()) {
    pass(end);
    for (Lane& lane : lanes_) {
      const Queued* head = lane.head();
      if (!head || head->left > kNothing) continue;
      ended.push_back({head->job, Nanoseconds(std::llround(head->served * 1e9))});
      lane.drop_head();
    }
  }
  pass(now);
}

}  // namespace kvd::sim
