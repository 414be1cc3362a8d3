#include "client_lib/engine/serve/iteration.hpp"

#include <utility>

namespace kvd::engine {

IterationRunner::IterationRunner(Transformer& model, KvMemory& memory, const Clock& clock,
                                 bool own_thread, Nanoseconds least)
    : model_(model), memory_(memory), clock_(clock), least_(least) {
  if (own_thread) thread_ = std::thread([this] { serve(); });
}

IterationRunner::~IterationRunner() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void IterationRunner::start(const Iteration& iteration) {
  {
    const std::lock_guard lock(mutex_);
    started_ = &iteration;
  }
  changed_.notify_all();
}

Outcome IterationRunner::finish() {
  if (!thread_.joinable()) return compute(*std::exchange(started_, nullptr));
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return finished_.has_value(); });
  return *std::exchange(finished_, std::nullopt);
}

void IterationRunner::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || started_ != nullptr; });
    if (stop_) return;
    const Iteration& iteration = *std::exchange(started_, nullptr);
    lock.unlock();
    Outcome outcome = compute(iteration);
    lock.lock();
    finished_ = std::move(outcome);
    changed_.notify_all();
  }
}

Outcome IterationRunner::compute(const Iteration& iteration) {
  const TimePoint began = clock_.now();
  Nanoseconds waited{0};
  const GroupGate gate{[&](std::uint32_t group) -> Status {
                         const TimePoint asked = clock_.now();
                         KVD_ASSIGN_OR_RETURN(const Waited had_to,
                                              memory_.ready(iteration.grant, group));
                         if (had_to == Waited::kYes) waited += clock_.now() - asked;
                         return {};
                       },
                       [&](std::uint32_t group) { return memory_.done(iteration.grant, group); }};
  auto logits = model_.forward(iteration.batch, gate);
  if (const auto rest = least_ - (clock_.now() - began); rest > Nanoseconds{0}) {
    std::this_thread::sleep_for(rest);
  }
  if (const Status intact = memory_.intact(); logits.ok() && !intact.ok()) logits = intact.error();
  return {std::move(logits), clock_.now() - began, waited};
}

}  // namespace kvd::engine
