#include "tests/lab/bench/step_shell.hpp"

#include <cmath>
#include <utility>

#include "ipc/vocabulary/check.hpp"
#include "planner/solver/placement_solver.hpp"

namespace kvd::bench {

using namespace core;  // NOLINT(google-build-using-namespace): this is a shell of it

StepShell::StepShell(Controller::Config config) {
  auto controller = Controller::create(std::move(config));
  KVD_CHECK(controller.ok(), controller.ok() ? "" : controller.error().message.c_str());
  controller_ = std::move(*controller);
}

EngineId StepShell::attach(const Attach& attach) {
  const auto grant = controller_->attach(attach, now_);
  KVD_CHECK(grant.ok(), grant.ok() ? "" : grant.error().message.c_str());
  return grant->engine;
}

Event StepShell::command_event(EngineId engine, decltype(Command::body) body) {
  return Command{engine, ReplyTo(++last_reply_to_), now_ + kStep, std::move(body)};
}

void StepShell::command(EngineId engine, decltype(Command::body) body) {
  feed(command_event(engine, std::move(body)));
}

void StepShell::feed(const Event& event) {
  pending_.push_back(event);
  settle();
}

StepCost StepShell::step(EngineId engine, Step body) {
  now_ += kStep;
  const Event event = command_event(engine, std::move(body));
  effects_.clear();
  const planner::ThreadCpuClock clock;
  const TimePoint begin = clock.now();
  controller_->on(event, now_, effects_);
  const TimePoint end = clock.now();
  const std::vector<Effect> copy(effects_);
  const TimePoint copied = clock.now();
  take_all(effects_);
  settle();
  return {to_seconds(end - begin) * 1e6, to_seconds(copied - end) * 1e6};
}

void StepShell::take_all(const std::vector<Effect>& effects) {
  for (const Effect& effect : effects) {
    std::visit([&](const auto& e) { take(e); }, effect);
  }
}

// Runs in a loop: a large pool is filled by tens of thousands of events, each caused by another.
void StepShell::settle() {
  while (!pending_.empty()) {
    const Event event = std::move(pending_.front());
    pending_.pop_front();
    std::vector<Effect> effects;
    controller_->on(event, now_, effects);
    take_all(effects);
  }
}

void StepShell::take(const Reply& reply) {
  if (const auto* step = std::get_if<StepReply>(&reply.body)) seen_.reply = *step;
  if (const auto* region = std::get_if<RegionReply>(&reply.body)) {
    seen_.regions.push_back(region->region);
  }
  const auto* error = std::get_if<Error>(&reply.body);
  const bool later = error != nullptr && error->code == ErrorCode::kWouldBlock;
  KVD_CHECK(error == nullptr || later, error->message.c_str());
}

void StepShell::copied(Ticket ticket, Bytes bytes) {
  constexpr double kLinkBytesPerSecond = 50e9;
  const double seconds = static_cast<double>(bytes.value) / kLinkBytesPerSecond;
  pending_.emplace_back(
      CopyFinished{ticket, true, bytes, Nanoseconds(std::llround(seconds * 1e9))});
}

void StepShell::take(const CopySlots& copy) {
  copied(copy.ticket, copy.slot_bytes * std::ssize(copy.pairs));
}

void StepShell::take(const MoveSlots& move) {
  copied(move.ticket, move.slot_bytes * std::ssize(move.pairs));
}

void StepShell::take(const StreamLayers& stream) {
  seen_.streamed = 0;
  for (const auto& fetch : stream.fetches) seen_.streamed += std::ssize(fetch.pairs);
  copied(stream.ticket, stream.slot_bytes * seen_.streamed);
}

// The step takes as long as the plan says, so that no plan is made again for that reason.
void StepShell::take(const SolvePlacement& problem) {
  const auto groups = static_cast<std::int32_t>(problem.snapshot.model.layers());
  planner::Candidate half{2, {}};
  for (std::int32_t group = 2; group <= groups; group += 2) half.offloaded.push_back(group);
  planner::PlacementDecision plan;
  plan.feasible = plan.proved = true;
  plan.placement.assign(problem.snapshot.requests.size(), half);
  plan.stalls.resize(problem.snapshot.requests.size());
  plan.latency = plan.lower_bound = planner::Seconds(kStep);
  plan.expires_in = problem.config.window_max;
  pending_.emplace_back(PlanReady{problem.engine, problem.number, problem.query, std::move(plan)});
}

void StepShell::take(const SendSlab& sent) {
  if (sent.region == RegionId(0)) pending_.emplace_back(SlabMapped{sent.engine, sent.slab});
}

void StepShell::take(const AskUnmap& ask) {
  pending_.emplace_back(SlabUnmapped{ask.engine, ask.slab});
}

}  // namespace kvd::bench
