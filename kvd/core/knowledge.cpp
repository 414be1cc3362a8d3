#include <algorithm>
#include <cmath>

#include "kvd/core/state.hpp"
#include "planner/model/profile.hpp"

/// What the policies know of requests beyond their memory: tokens saved up for the user, expected
/// length, absences, and how long steps take.
namespace kvd::core {

namespace {

constexpr double kWeight = 0.25;  // kvd design: as for the link rate
constexpr auto kIgnore = [](Nanoseconds) {};

void follow(double& mean, double observed) {
  mean = mean == 0 ? observed : mean + kWeight * (observed - mean);
}

}  // namespace

Tokens Request::answer() const { return has_token ? tokens - prompt + Tokens(1) : Tokens(0); }

void Controller::State::note_end(Session& session, const Request& request) {
  if (request.has_token) session.lengths.ended(request.answer());
}

void Controller::State::note_return(const Request& request) {
  follow(mean_absence_s, to_seconds(now - request.out_since));
}

planner::LengthEstimate Controller::State::expected_length(const Request& request) const {
  const Tokens made = request.answer();
  if (made >= request.max_new) return {request.max_new, request.max_new, request.max_new};
  if (const auto& said = request.predicted) {
    return planner::estimate_in_bucket(said->low, said->high, made, request.max_new);
  }
  const Session& session = sessions.at(request.key.engine);
  const auto learned = session.lengths.estimate(made, request.max_new);
  return learned ? *learned : planner::estimate_unknown(made, request.max_new);
}

std::int64_t Controller::State::saved_up(Request& request) {
  if (!request.deposit) return 0;
  request.deposit->advance(now, kIgnore);
  return request.deposit->left();
}

// The time since the last step is that of the iteration just reported, pipelined or not: a line
// over its prompt tokens.
void Controller::State::measure_step(Session& session, double took) {
  const bool prefills = session.reported_prefill > Tokens(0);
  session.prefill.observe(static_cast<double>(session.reported_prefill.value), took);
  const planner::FittedLine::Line line = session.prefill.line();
  if (line.slope > 0 && line.at_zero > 0) {
    session.decode_s = line.at_zero;
    session.prefill_token_s = line.slope;
  } else if (!prefills) {
    follow(session.decode_s, took);
  }
  if (!prefills) measure_plan(session, took);
}

// What a step takes without waiting for layers, and whether the plan in force foresaw it.
void Controller::State::measure_plan(Session& session, double took) {
  constexpr double kMismatch = planner::CostProfile::kMismatch;
  LayerPlan& plan = session.plan;
  double tokens = 0;
  each_inside_of(session.id, [&](const Request& r) {
    if (r.last_iteration == session.iteration) tokens += static_cast<double>(r.tokens.value);
  });
  const double stall = plan.batch.empty() ? 0 : plan.stall_s;
  if (took > stall) session.compute.observe(tokens, took - stall);
  if (!plan.batch.empty() && std::abs(took - plan.step_s) > kMismatch * plan.step_s) {
    plan.mismatch = true;
  }
}

}  // namespace kvd::core
