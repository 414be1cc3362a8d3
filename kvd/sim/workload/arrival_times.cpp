#include "kvd/sim/workload/arrival_times.hpp"

#include <algorithm>
#include <cmath>

namespace kvd::sim {
namespace {

Error invalid(const std::string& message) {
  return make_error(ErrorCode::kInvalidArgument, message);
}

Status check(const ArrivalPattern& pattern) {
  if (!(pattern.rate > 0) || !std::isfinite(pattern.rate)) {
    return invalid("the request rate must be above 0 requests a second; use --rate");
  }
  if (!(pattern.cv >= 0) || pattern.cv > 100) {
    return invalid("the CV of the gaps must be 0 to 100; 1 is Poisson");
  }
  if (pattern.duration &&
      (!(pattern.duration->count() > 0) || !std::isfinite(pattern.duration->count()))) {
    return invalid("the duration of arrivals must be above 0 s");
  }
  if (pattern.requests && *pattern.requests == 0) {
    return invalid("the number of requests must be at least 1");
  }
  if (!pattern.duration && !pattern.requests) {
    return invalid("say how long requests arrive or how many: --duration or --requests");
  }
  const double expected = pattern.duration ? pattern.duration->count() * pattern.rate : 0;
  if (expected > static_cast<double>(kMaxArrivals) || pattern.requests.value_or(1) > kMaxArrivals) {
    return invalid("more than " + std::to_string(kMaxArrivals) +
                   " requests: take a lower rate, a shorter duration or fewer requests");
  }
  return {};
}

}  // namespace

Result<std::vector<Seconds>> arrival_times(const ArrivalPattern& pattern, Random& random) {
  KVD_TRY(check(pattern));
  const std::size_t most = pattern.requests.value_or(kMaxArrivals);
  const double shape = pattern.cv > 0 ? 1 / (pattern.cv * pattern.cv) : 0;
  std::vector<Seconds> times;
  double now = 0;
  while (times.size() < most) {
    const double gap = shape > 0 ? random.gamma(shape) / shape : 1;
    now += gap / pattern.rate;
    if (pattern.duration && now > pattern.duration->count()) break;
    times.emplace_back(now);
  }
  return times;
}

Workload in_order(Workload requests, const ArrivalPattern& pattern) {
  std::stable_sort(requests.begin(), requests.end(),
                   [](const Arrival& a, const Arrival& b) { return a.time < b.time; });
  if (pattern.duration) {
    std::erase_if(requests, [&](const Arrival& each) { return each.time > *pattern.duration; });
  }
  requests.resize(std::min(requests.size(), pattern.requests.value_or(requests.size())));
  return requests;
}

}  // namespace kvd::sim
