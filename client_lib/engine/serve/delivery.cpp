#include "client_lib/engine/serve/delivery.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace kvd::engine {
namespace {

constexpr Nanoseconds kIdleEvery = std::chrono::seconds(1);

}  // namespace

Delivery::~Delivery() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Delivery::start() {
  thread_ = std::thread([this] { serve(); });
}

void Delivery::open(std::uint64_t request, std::shared_ptr<TokenSink> sink, Nanoseconds tbt_slo) {
  const std::lock_guard lock(mutex_);
  open_.emplace(request, Open{std::move(sink), tbt_slo, std::nullopt, {}});
}

void Delivery::accepted(std::uint64_t request) {
  const std::lock_guard lock(mutex_);
  const auto found = open_.find(request);
  if (found != open_.end()) found->second.sink->accepted();
}

void Delivery::found(std::uint64_t request, std::uint64_t tokens) {
  const std::lock_guard lock(mutex_);
  const auto found = open_.find(request);
  if (found != open_.end()) found->second.sink->found(tokens);
}

void Delivery::token(std::uint64_t request, Piece piece) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = open_.find(request);
    if (found == open_.end()) return;
    Open& open = found->second;
    open.waiting.push_back(std::move(piece));
    if (open.slo == Nanoseconds(0)) {
      release(open);
    } else if (!open.deposit) {
      open.deposit.emplace(open.slo, clock_.now());
      release(open);
    } else {
      open.deposit->generated(clock_.now(), [&open = open](Nanoseconds) { release(open); });
    }
  }
  changed_.notify_all();
}

void Delivery::release(Open& open) {
  open.sink->token(open.waiting.front());
  open.waiting.pop_front();
}

void Delivery::end(std::uint64_t request, FinishReason reason, const std::string& tail) {
  const std::lock_guard lock(mutex_);
  const auto found = open_.find(request);
  if (found == open_.end()) return;
  while (!found->second.waiting.empty()) release(found->second);
  found->second.sink->ended(reason, tail);
  open_.erase(found);
}

void Delivery::fail(std::uint64_t request, const Error& error) {
  const std::lock_guard lock(mutex_);
  const auto found = open_.find(request);
  if (found == open_.end()) return;
  found->second.sink->failed(error);
  open_.erase(found);
}

void Delivery::drop(std::uint64_t request) {
  const std::lock_guard lock(mutex_);
  open_.erase(request);
}

std::optional<TimePoint> Delivery::release_due() {
  const std::lock_guard lock(mutex_);
  return release_due_locked();
}

std::optional<TimePoint> Delivery::release_due_locked() {
  std::optional<TimePoint> next;
  for (auto& [id, open] : open_) {
    if (!open.deposit) continue;
    open.deposit->advance(clock_.now(), [&open = open](Nanoseconds) { release(open); });
    if (open.deposit->left() > 0)
      next = std::min(next.value_or(TimePoint::max()), open.deposit->due());
  }
  return next;
}

void Delivery::serve() {
  std::unique_lock lock(mutex_);
  for (TimePoint idled = clock_.now(); !stop_;) {
    const TimePoint next = release_due_locked().value_or(TimePoint::max());
    const TimePoint now = clock_.now();
    if (now - idled >= kIdleEvery) {
      idled = now;
      for (auto& [id, open] : open_) open.sink->idle();
    }
    changed_.wait_for(lock, std::min(next, idled + kIdleEvery) - now);
  }
}

}  // namespace kvd::engine
