#include "kvd/core/ledger/knowledge.hpp"

#include <algorithm>
#include <cmath>

#include "planner/model/profile.hpp"

namespace kvd::core {

namespace {

constexpr double kUnmeasuredLink = 1e10;  // bytes a second
constexpr double kWeight = 0.25;          // kvd design: weight of the newest observation
constexpr double kUsualPrefill = 1e-3;    // seconds a token
constexpr double kLeastShare = 0.05;      // prompts' least share of a step: no wait is endless
constexpr Tokens kShortAnswer(64);        // kvd design: most answers are longer
constexpr Tokens kUsualAnswer(1024);      // kvd design: kept for a request while nothing is known
constexpr std::int64_t kMostDeposit = 1'000'000'000;
constexpr TimePoint kFarOff(std::int64_t{1} << 62);  // nothing is due later
constexpr double kPaceWindow = 1;                    // seconds; kvd design
constexpr double kPaceWeight = 0.3;                  // share of the newest window in the mean
// Goals of requests that have none: a token within so many steps with the most requests that run at
// a time, and a first token within so many times what a usual prompt takes with nobody else there.
// On a fast engine not less than people notice: to keep such goals costs others more than it is
// worth. kvd design.
constexpr double kOwnSteps = 3;
constexpr double kOwnPrefills = 8;
constexpr double kNoticedGap = 0.03;  // seconds; faster than one reads
constexpr double kNoticedWait = 0.8;  // seconds

/// Tokens that the rest of its answer makes up for, one a step. Where only the longest gap is seen,
/// the mean counts. Half of the expected rest counts as certain, since half of the answers end
/// sooner.
std::int64_t made_up(const planner::RotationRequest& request, double step_s) {
  if (request.tokens_made == Tokens(0)) return 0;
  const Tokens all = request.output_tokens.value_or(request.tokens_made);
  const double sure = static_cast<double>(std::max(Tokens(0), all - request.tokens_made).value) / 2;
  const double gains = 1 - step_s / request.tbt_slo.count();
  return static_cast<std::int64_t>(sure * std::max(0.0, gains));
}

Tokens left_of_prompt(const Request& request) {
  return std::max(Tokens(0), request.goal.prompt - request.progress.planned);
}

void follow(double& mean, double observed) {
  mean = mean == 0 ? observed : mean + kWeight * (observed - mean);
}

}  // namespace

void Knowledge::measure_link(const std::vector<DeviceId>& devices, Tier to,
                             const CopyFinished& finished) {
  if (finished.busy.count() <= 0) return;
  const double each =
      static_cast<double>(finished.bytes.value) / static_cast<double>(devices.size());
  for (const DeviceId device : devices) {
    follow(links_[device.value].rates[to == Tier::kDram ? 1 : 0], each / to_seconds(finished.busy));
  }
}

bool Knowledge::was_iteration(const Session& session, bool running) {
  const Iterations& iterations = session.iterations;
  // An iteration ran already at the last step: it is over once the next one runs, or once none runs
  // because nothing was granted.
  if (iterations.overlapped) return running == iterations.stepping;
  return iterations.stepping && !running;
}

void Knowledge::ended(Session& session, const Request& request) {
  if (request.times.has_token) session.costs.lengths.ended(request.answer());
}

void Knowledge::pace(Seen& request, Tokens made, TimePoint first, TimePoint last) {
  const Nanoseconds tbt = std::min(request.goal.slo.tbt, kLongestGoal);
  if (tbt <= Nanoseconds(0)) return;
  std::optional<TimePoint>& due = request.times.due;
  const double all = static_cast<double>(tbt.count()) * static_cast<double>(made.value);
  const Nanoseconds lasts(static_cast<std::int64_t>(std::min(all, 4e18)));
  due = std::min(kFarOff, std::max(std::max(due.value_or(first), first) + lasts, last + tbt));
}

void Knowledge::returned(const Request& request) {
  const double late = request.times.due ? to_seconds(context_.now - *request.times.due) : 0;
  mean_lateness_s_ += kWeight * (std::max(0.0, late) - mean_lateness_s_);
}

double Knowledge::prefill_left_s(const Seen& request) const {
  const Costs& costs = request.session->costs;
  const double own = costs.prefill_token_s * static_cast<double>(request.to_compute().value);
  return request.waits() ? (own + costs.prefill_ahead_s) / costs.prefill_share : own;
}

bool Knowledge::hopeless(const Seen& request) const {
  const double waited = to_seconds(context_.now - request.times.arrived);
  return waited + prefill_left_s(request) > to_seconds(request.goal.slo.ttft);
}

double Knowledge::slower_link(DeviceId device) const {
  const auto& rates = link_rates(device);
  return std::min(rates[0], rates[1]);
}

double Knowledge::link_or_default(DeviceId device) const {
  const double rate = slower_link(device);
  return rate > 0 ? rate : kUnmeasuredLink;
}

double Knowledge::fetch_rate(DeviceId device) const {
  const double rate = link_rates(device)[0];
  return rate > 0 ? rate : link_or_default(device);
}

double Knowledge::prefill_token_s(const Session& session) {
  return kUsualPrefill * prefill_cost(session).value_or(1);
}

double Knowledge::prefill_ahead_s(const Request& request) const {
  const Session& session = requests_.session_of(request);
  Tokens others = prefill_ahead(session);
  const bool is_inside = !request.waits() || request.order.claim != 0;
  if (is_inside) others -= left_of_prompt(request);
  return prefill_token_s(session) * static_cast<double>(others.value);
}

Tokens Knowledge::prefill_ahead(const Session& session) const {
  Tokens left;
  requests_.each_inside_of(session.id,
                           [&](const Request& request) { left += left_of_prompt(request); });
  return left;
}

void Knowledge::look_ahead(Session& session) const {
  const auto tokens = static_cast<double>(prefill_ahead(session).value);
  session.costs.prefill_ahead_s = session.costs.prefill_token_s * tokens;
}

std::optional<double> Knowledge::prefill_cost(const Session& session) {
  const double measured = session.costs.prefill_token_s;
  return measured > 0 ? std::optional(measured / kUsualPrefill) : std::nullopt;
}

store::SecondsPerByte Knowledge::saved(const Session& session) {
  const Bytes row = session.shape.slot_bytes() * std::int64_t{session.groups()};
  return saved(Tokens(session.shape.block_tokens), row);
}

store::SecondsPerByte Knowledge::saved(Tokens tokens, Bytes bytes) {
  return {kUsualPrefill * static_cast<double>(tokens.value) / static_cast<double>(bytes.value)};
}

planner::LengthEstimate Knowledge::expected_length(const Seen& request) const {
  const Tokens made = request.answer(), most = request.goal.max_new;
  if (made >= most) return {most, most, most};
  if (const auto& said = request.goal.predicted) {
    return planner::estimate_in_bucket(said->low, said->high, made, most);
  }
  const auto learned = request.session->costs.lengths.estimate(made, most);
  return learned.value_or(planner::estimate_unknown(made, most));
}

std::optional<std::int64_t> Knowledge::guessed_to_come(const Seen& request) const {
  const planner::LengthPredictor& seen = requests_.session_of(request).costs.lengths;
  const bool known = request.goal.predicted || seen.samples() >= planner::LengthPredictor::kLeast;
  if (known) return std::nullopt;
  const Tokens all = std::min(request.goal.max_new, kShortAnswer);
  return std::max<std::int64_t>(1, (all - request.answer()).value);
}

// A request that outgrew all answers seen is taken to be half done.
Tokens Knowledge::reserved_length(const Seen& request) const {
  const Tokens made = request.answer(), most = request.goal.max_new;
  if (made >= most) return most;
  if (const auto& said = request.goal.predicted) {
    return planner::estimate_in_bucket(said->low, said->high, made, most).high;
  }
  const planner::LengthPredictor& seen = requests_.session_of(request).costs.lengths;
  const auto learned = seen.quantile(made, planner::LengthPredictor::kHigh);
  return std::min(most, learned.value_or(std::max(kUsualAnswer, made * 2)));
}

std::int64_t Knowledge::saved_up(const Seen& request) const {
  if (!request.times.due) return 0;
  const Nanoseconds left = *request.times.due - context_.now;
  const Nanoseconds tbt = std::min(request.goal.slo.tbt, kLongestGoal);
  return left <= tbt ? 0 : std::min(kMostDeposit, (left - Nanoseconds(1)) / tbt);
}

planner::RotationRequest Knowledge::as_timed(const Seen& request) {
  planner::RotationRequest entry;
  const bool begun = request.times.has_token;
  entry.state = request.runs()              ? planner::RequestState::kRunning
                : request.waits() && !begun ? planner::RequestState::kWaiting
                                            : planner::RequestState::kRotary;
  entry.t_arr = request.times.arrived;
  if (begun) entry.t_last = request.times.last_token;
  if (request.runs()) entry.t_run = request.times.run_since;
  entry.ttft_slo = request.goal.slo.ttft;
  entry.tbt_slo = request.goal.slo.tbt;
  return entry;
}

planner::RotationRequest Knowledge::as_rotation(const Seen& request,
                                                std::optional<double> shown_step_s) const {
  planner::RotationRequest entry = as_timed(request);
  entry.prefilling = request.prefills();
  entry.skips = static_cast<std::int32_t>(request.order.skips);
  // A request that came in must make a token before it may leave again, or no request gets
  // anywhere.
  entry.made_token = !request.runs() || !request.fresh;
  entry.tokens_made = request.answer();
  if (context_.rotation->traits().asks_lengths) {
    entry.output_tokens = expected_length(request).median;
  }
  if (!request.times.has_token) entry.prefill = planner::Seconds(prefill_left_s(request));
  entry.deposit = saved_up(request);
  if (shown_step_s) {
    entry.gap = planner::Seconds(to_seconds(request.goal.slo.longest_gap()));
    entry.deposit += made_up(entry, *shown_step_s);
  }
  return entry;
}

planner::DecodingRequest Knowledge::as_decoding(const Seen& request, std::int64_t saved_up,
                                                double step_s) const {
  const Tokens made = request.answer();
  const Nanoseconds past = std::max(Nanoseconds(0), context_.now - request.times.first_token);
  const std::int64_t left = (expected_length(request).low - made).value;
  return {planner::Seconds(request.goal.slo.tpot),
          made.value,
          planner::Seconds(past),
          std::max<std::int64_t>(1, left),
          planner::Seconds(step_s),
          request.goal.prompt,
          saved_up,
          std::nullopt,
          planner::Seconds(request.goal.slo.tbt)};
}

planner::QueuedPrompt Knowledge::as_queued(const Seen& request, bool begun, Tokens done) const {
  planner::QueuedPrompt entry;
  entry.tokens = request.goal.prompt + request.answer();
  entry.done = std::min(done, entry.tokens);
  entry.output = expected_length(request).median.value;
  entry.begun = begun;
  const double spare = to_seconds(request.times.arrived + request.goal.slo.ttft - context_.now) -
                       prefill_left_s(request);
  if (spare > 0) entry.spare = planner::Seconds(spare);
  return entry;
}

// Costs as measured: prefill in proportion to its tokens (eq. 3 without its quadratic term); the
// cost of a token's bytes in one layer group is folded into beta.
planner::PrefillCosts Knowledge::prefill_costs(const Session& session, std::uint32_t groups,
                                               double token) const {
  planner::PrefillCosts costs;
  costs.layers = static_cast<std::int32_t>(groups);
  costs.alpha = context_.tuning.admission.alpha;
  costs.beta = context_.tuning.admission.beta * token / 2;
  costs.precision_bytes = 1;
  costs.params = session.costs.prefill_token_s / 2;
  costs.link = {link_or_default(session.devices().first())};
  return costs;
}

// Fits a plane over the tokens of the batch and those of its prompts: its value without prompts is
// the time of a decode.
void Knowledge::measure_step(Session& session, double took) {
  // What the link may move in a step must not grow with the waits for what it moves.
  const double stall = session.plan.batch.empty() ? 0 : session.plan.stall_s;
  for (const DeviceId device : session.devices().all()) {
    follow(links_[device.value].step_s, took > stall ? took - stall : took);
  }
  const bool prefills = session.iterations.reported_prefill > Tokens(0);
  const auto prompts = static_cast<double>(session.iterations.reported_prefill.value);
  const double tokens = batch_tokens(session);
  Costs& costs = session.costs;
  costs.step.observe(tokens, prompts, took);
  const planner::FittedPlane::Plane plane = costs.step.plane();
  if (const double decode = plane.at(tokens, 0); plane.by_second > 0 && decode > 0) {
    costs.decode_s = decode;
    costs.prefill_token_s = plane.by_second;
    costs.token_s = plane.by_first;
  } else if (!prefills) {
    follow(costs.decode_s, took);
  }
  if (!prefills) return measure_plan(session, tokens, took);
  const double share = costs.prefill_token_s * prompts / took;
  if (share > 0) follow(costs.prefill_share, std::clamp(share, kLeastShare, 1.0));
}

void Knowledge::measure_step(Costs& costs, const Schedule& told) {
  const double took = to_seconds(told.last_step);
  if (took <= 0 || took > kLongestStep) return;
  const auto decodes = static_cast<double>(told.last_step_decodes);
  const auto prompts = static_cast<double>(told.last_step_prefill.value);
  if (prompts > 0) {
    const double alone = costs.decode.measured() ? costs.decode.at(decodes) : 0;
    costs.prefill.observe(prompts, std::max(0.0, took - alone));
    const planner::FittedLine::Line line = costs.prefill.line();
    costs.decode_s = std::max(0.0, line.at_zero);
    costs.prefill_token_s =
        line.slope > 0 ? line.slope : costs.prefill.mean_y() / costs.prefill.mean_x();
  } else if (decodes > 0) {
    costs.decode.observe(decodes, took);
  }
}

void Knowledge::measure_pace(Costs& costs, std::int64_t tokens, double s) {
  costs.window.s += std::max(0.0, s);
  costs.window.tokens += tokens;
  if (costs.window.s < kPaceWindow) return;
  const double seen = static_cast<double>(costs.window.tokens) / costs.window.s;
  double& pace = costs.tokens_per_s;
  pace = pace == 0 ? seen : pace + kPaceWeight * (seen - pace);
  costs.window = {};
}

double Knowledge::decode_s(const Costs& costs, std::int64_t decodes) {
  if (!costs.decode.measured()) return costs.decode_s;
  return std::max(0.0, costs.decode.at(static_cast<double>(std::max<std::int64_t>(1, decodes))));
}

double Knowledge::decode_beside_prefill_s(const Costs& costs, std::int64_t decodes) {
  const double alone = decode_s(costs, decodes);
  if (!costs.decode.measured() || !costs.prefill.measured()) return alone;
  const planner::FittedLine::Line line = costs.prefill.line();
  return line.slope > 0 ? alone + std::max(0.0, line.at_zero) : alone;
}

std::optional<Slo> Knowledge::own_goals(const Costs& costs, Tokens prompt) {
  if (!costs.decode.measured() || !costs.prefill.measured()) return std::nullopt;
  const double tokens = std::max(costs.prompts.mean(), static_cast<double>(prompt.value));
  const auto goal = [](double s, double noticed) {
    return Nanoseconds(static_cast<std::int64_t>(std::clamp(s, noticed, kLongestStep) * 1e9));
  };
  const Nanoseconds tbt = goal(kOwnSteps * decode_s(costs, costs.most_running), kNoticedGap);
  const double prefill_s = decode_s(costs, 1) + tokens * costs.prefill_token_s;
  return Slo{goal(kOwnPrefills * prefill_s, kNoticedWait), tbt, 2 * tbt};
}

// The sum of the contexts of requests that decode in the iteration that ends.
double Knowledge::batch_tokens(const Session& session) {
  double tokens = 0;
  requests_.each_inside_of(session.id, [&](const Request& r) {
    if (r.decodes() && r.progress.last_iteration == session.iterations.granted)
      tokens += static_cast<double>(r.progress.tokens.value);
  });
  return tokens;
}

// Measures what a step takes without waits for layers, and whether the plan in force foresaw it.
void Knowledge::measure_plan(Session& session, double tokens, double took) {
  constexpr double kMismatch = planner::CostProfile::kMismatch;
  LayerPlan& plan = session.plan;
  const double stall = plan.batch.empty() ? 0 : plan.stall_s;
  if (took > stall) session.costs.compute.observe(tokens, took - stall);
  if (!plan.batch.empty() && std::abs(took - plan.step_s) > kMismatch * plan.step_s) {
    plan.mismatch = true;
  }
}

}  // namespace kvd::core
