#include <algorithm>

#include "ipc/vocabulary/layer_mark.hpp"
#include "kvd/sim/world/world.hpp"

/// How an engine goes from one iteration to the next: it steps, waits for its swaps and the device,
/// computes, waits for streamed layers in between, and reports.
namespace kvd::sim {
namespace {

/// How often an engine that was granted nothing asks again when nothing else happens: policies may
/// wait until a deadline is near. (kvd design.)
constexpr Nanoseconds kPoll = std::chrono::milliseconds(10);

}  // namespace

// Precondition: idle. Begins what was granted, or asks for a grant.
void World::turn(Driver& driver) {
  if (driver.granted.run.empty()) step(driver, false);
  if (!fault_.ok()) return;
  if (driver.granted.run.empty()) {
    driver.wake = driver.engine.open() > 0 ? now_ + kPoll : TimePoint::max();
    return;
  }
  driver.wake = TimePoint::max();
  driver.tickets.clear();
  for (const core::RunEntry& entry : driver.granted.run) {
    if (entry.ticket) driver.tickets.push_back(entry.ticket);
  }
  driver.waits_since = now_;
  driver.phase = Phase::kAwaitsCopies;
  proceed(driver);
}

// Its swaps may be complete.
void World::proceed(Driver& driver) {
  std::erase_if(driver.tickets, [&](Ticket ticket) { return !copies_.contains(ticket); });
  if (!driver.tickets.empty()) return;
  totals_.stall += Seconds(now_ - driver.waits_since);
  take_device(driver);
}

void World::take_device(Driver& driver) {
  driver.phase = Phase::kAwaitsDevice;
  if (setting_.one_device) {
    const auto self =
        static_cast<std::uint32_t>(std::find_if(drivers_.begin(), drivers_.end(),
                                                [&](const Driver& d) { return &d == &driver; }) -
                                   drivers_.begin());
    device_queue_.push_back(self);
    if (device_queue_.front() != self) return;
  }
  execute(driver);
}

void World::execute(Driver& driver) {
  const Batch batch = driver.engine.plan(driver.granted);
  driver.iteration = driver.granted.iteration;
  driver.granted.run.clear();
  driver.engine.begin(since_start());
  driver.phase = Phase::kComputes;
  const bool empty = batch.decoding == 0 && batch.prompt_tokens == 0;
  driver.compute = empty ? Nanoseconds(0) : whole(iteration_time(driver.engine.profile(), batch));
  totals_.compute += Seconds(driver.compute);
  totals_.iterations += empty ? 0 : 1;
  if (driver.engine.profile().pipelined) step(driver, true);
  if (!fault_.ok()) return;
  compute(driver);
}

void World::compute(Driver& driver) {
  driver.by_group = driver.streams.any();
  driver.group = 0;
  if (driver.by_group) {
    next_group(driver);
  } else {
    driver.wake = now_ + driver.compute;
  }
}

// The group's share of the computation: all layers take equally long.
TimePoint World::group_end(const Driver& driver) const {
  const auto& shape = driver.engine.profile().shape;
  const auto until = [&](std::uint32_t groups) {
    const std::int64_t layers = std::min(groups * shape.layers_per_block, shape.layers);
    return driver.compute.count() * layers / shape.layers;
  };
  return now_ + Nanoseconds(until(driver.group + 1) - until(driver.group));
}

void World::next_group(Driver& driver) {
  if (driver.streams.ready(driver.iteration, driver.group)) {
    driver.phase = Phase::kComputes;
    driver.wake = group_end(driver);
    return;
  }
  driver.phase = Phase::kAwaitsLayers;
  driver.waits_since = now_;
}

void World::group_done(Driver& driver) {
  ++driver.group;
  driver.streams.progressed(layer_mark(driver.iteration, driver.group), machine_.link, now_);
  if (driver.group == driver.engine.profile().shape.groups()) {
    finish(driver);
  } else {
    next_group(driver);
  }
}

void World::finish(Driver& driver) {
  const std::uint32_t groups = driver.engine.profile().shape.groups();
  driver.streams.progressed(layer_mark(driver.iteration, groups), machine_.link, now_);
  driver.finished = driver.iteration;
  done_ += driver.engine.complete(since_start());
  last_progress_ = now_;
  driver.phase = Phase::kIdle;
  driver.kicked = true;
  if (setting_.progress) setting_.progress(done_, setting_.workload.size());
  seat(driver);
  if (!setting_.one_device) return;
  device_queue_.pop_front();
  if (!device_queue_.empty()) execute(drivers_[device_queue_.front()]);
}

// The driver's time has come.
void World::wake(Driver& driver) {
  switch (driver.phase) {
    case Phase::kIdle:
      driver.kicked = true;
      break;
    case Phase::kAwaitsCopies:
      proceed(driver);
      break;
    case Phase::kAwaitsDevice:
      break;
    case Phase::kComputes:
      if (driver.by_group) {
        group_done(driver);
      } else {
        finish(driver);
      }
      break;
    case Phase::kAwaitsLayers:
      if (!driver.streams.ready(driver.iteration, driver.group)) break;
      totals_.stall += Seconds(now_ - driver.waits_since);
      next_group(driver);
      break;
  }
}

void World::step(Driver& driver, bool running) {
  core::Step body;
  body.iteration_finished = driver.reported = driver.finished;
  body.iteration_running = running ? driver.iteration : 0;
  body.reports = driver.engine.take_reports();
  core::Reply reply = command(driver.id, std::move(body));
  if (const auto* error = std::get_if<Error>(&reply.body)) {
    fault_ = make_error(ErrorCode::kInternal, "the Controller refused a step: " + error->message);
    return;
  }
  driver.granted = std::move(std::get<core::StepReply>(reply.body));
  driver.engine.note_holds(driver.granted, since_start());
  if (meter_.due()) meter_.sample(controller_->status(now_));
}

}  // namespace kvd::sim
