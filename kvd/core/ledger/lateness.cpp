#include "kvd/core/ledger/lateness.hpp"

#include <utility>

namespace kvd::core {

bool Lateness::made(Request& request) {
  Times& times = request.times;
  const bool first = !times.has_token;
  const TimePoint since = first ? times.arrived : times.last_token;
  over(request, first ? To::kFirst : To::kNext, context_.now - since,
       std::exchange(times.late, false));
  if (first) times.first_token = context_.now;
  times.has_token = true;
  times.last_token = context_.now;
  requests_.watch(request);
  return first;
}

void Lateness::entered(const Request& request) {
  over(request, To::kRun, context_.now - request.times.arrived);
}

void Lateness::ended(const Request& request) {
  if (request.progress.last_iteration == 0) entered(request);
  const std::optional<TimePoint> passes = request.goal_passes();
  if (request.times.late || !passes || context_.now <= *passes) return;
  judge(request, !request.times.has_token, false);
}

void Lateness::watch() {
  std::size_t looks = kLooks;
  while (Request* request = requests_.next_late(context_.now, looks)) pass(*request);
  for (auto& [id, session] : requests_.sessions()) {
    if (!session.placed || !session.placed->is_news(context_.now)) continue;
    for (PlacedRequest& request : session.placed->all) {
      if (request.times.late || request.let_in || request.runs()) continue;
      const std::optional<TimePoint> passes = request.goal_passes();
      if (passes && context_.now > *passes) pass(request);
    }
  }
}

void Lateness::over(const Seen& request, To to, Nanoseconds took, bool counted,
                    std::uint64_t times) {
  ClassService& service = request.session->totals.services[request.goal.slo_class];
  if (to == To::kRun) return service.wait_s.add(to_seconds(took));
  const bool first = to == To::kFirst;
  const Nanoseconds goal = first ? request.goal.slo.ttft : request.goal.slo.tbt;
  (first ? service.ttft_s : service.tbt_s).add(to_seconds(took), times);
  if (!counted) judge(request, first, took <= goal, times);
}

void Lateness::pass(Seen& request) {
  request.times.late = true;
  judge(request, !request.times.has_token, false);
}

void Lateness::judge(const Seen& request, bool first, bool met, std::uint64_t times) {
  ClassService& service = request.session->totals.services[request.goal.slo_class];
  Counters& all = context_.counters;
  for (Intervals* of : {first ? &service.ttft : &service.tbt, first ? &all.ttft : &all.tbt}) {
    (met ? of->met : of->missed) += times;
  }
}

}  // namespace kvd::core
