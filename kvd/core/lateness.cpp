#include "kvd/core/lateness.hpp"

#include <utility>

namespace kvd::core {

bool Lateness::made(Request& request) {
  Times& times = request.times;
  const bool first = !times.has_token;
  const TimePoint since = first ? times.arrived : times.last_token;
  const Slo& goals = request.goal.slo;
  count(requests_.session_of(request),
        {first ? Interval::To::kFirst : Interval::To::kNext, context_.now - since,
         first ? goals.ttft : goals.tbt, request.goal.slo_class, std::exchange(times.late, false)});
  if (first) times.first_token = context_.now;
  times.has_token = true;
  times.last_token = context_.now;
  requests_.watch(request);
  return first;
}

void Lateness::entered(const Request& request) {
  count(requests_.session_of(request),
        {Interval::To::kRun, context_.now - request.times.arrived, {}, request.goal.slo_class});
}

void Lateness::ended(const Request& request) {
  if (request.progress.last_iteration == 0) entered(request);
  const std::optional<TimePoint> passes = request.goal_passes();
  if (request.times.late || !passes || context_.now <= *passes) return;
  judge(requests_.session_of(request), request.goal.slo_class, !request.times.has_token, false);
}

void Lateness::watch() {
  std::size_t looks = kLooks;
  while (Request* request = requests_.next_late(context_.now, looks)) {
    request->times.late = true;
    judge(requests_.session_of(*request), request->goal.slo_class, !request->times.has_token,
          false);
  }
}

void Lateness::take(Session& session, const Placing& placing) {
  for (const Interval& interval : placing.over()) count(session, interval);
}

void Lateness::watch(Session& session, Placing& placing) {
  placing.each_late(context_.now, [&](const Placing::Known& known) {
    judge(session, known.slo_class, known.generated == Tokens(0), false);
  });
}

void Lateness::count(Session& session, const Interval& interval) {
  ClassService& service = session.totals.services[interval.slo_class];
  const double took = to_seconds(interval.took);
  if (interval.to == Interval::To::kRun) return service.wait_s.add(took);
  const bool first = interval.to == Interval::To::kFirst;
  (first ? service.ttft_s : service.tbt_s).add(took, interval.times);
  if (interval.counted) return;
  judge(session, interval.slo_class, first, interval.took <= interval.goal, interval.times);
}

void Lateness::judge(Session& session, std::uint8_t slo_class, bool first, bool met,
                     std::uint64_t times) {
  ClassService& service = session.totals.services[slo_class];
  Counters& all = context_.counters;
  for (Intervals* of : {first ? &service.ttft : &service.tbt, first ? &all.ttft : &all.tbt}) {
    (met ? of->met : of->missed) += times;
  }
}

}  // namespace kvd::core
