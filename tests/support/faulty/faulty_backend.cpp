#include "tests/support/faulty/faulty_backend.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <utility>

namespace kvd::kernels {
namespace {

Error injected(ErrorCode code) { return make_error(code, "injected by the fault script"); }

bool watch(int epoll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  return ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace

Result<std::unique_ptr<FaultyBackend>> FaultyBackend::create(std::unique_ptr<DeviceBackend> inner,
                                                             FaultScript script) {
  UniqueFd nudge(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  UniqueFd ready(::epoll_create1(EPOLL_CLOEXEC));
  if (!nudge.valid() || !ready.valid() || !watch(ready.get(), nudge.get()) ||
      !watch(ready.get(), inner->completion_fd())) {
    return make_error(ErrorCode::kUnavailable, "no descriptors left; raise LimitNOFILE");
  }
  return std::unique_ptr<FaultyBackend>(
      new FaultyBackend(std::move(inner), std::move(script), std::move(nudge), std::move(ready)));
}

FaultyBackend::FaultyBackend(std::unique_ptr<DeviceBackend> inner, FaultScript script,
                             UniqueFd nudge, UniqueFd ready)
    : inner_(std::move(inner)),
      script_(std::move(script)),
      nudge_(std::move(nudge)),
      ready_(std::move(ready)),
      random_(script_.seed) {}

Ticket FaultyBackend::step() {
  const std::lock_guard lock(mutex_);
  return release_one();
}

void FaultyBackend::release_all() {
  const std::lock_guard lock(mutex_);
  while (release_one()) {
  }
}

FaultCounters FaultyBackend::faults() const {
  const std::lock_guard lock(mutex_);
  return faults_;
}

bool FaultyBackend::fails_create() {
  const std::lock_guard lock(mutex_);
  const bool fails = script_.fail_creates.contains(++creates_);
  if (fails) ++faults_.failed_creates;
  return fails;
}

Result<Slab> FaultyBackend::do_create_slab(Tier tier, Bytes size) {
  if (fails_create()) return injected(ErrorCode::kOutOfMemory);
  return inner_->create_slab(tier, size);
}

Result<Slab> FaultyBackend::do_copy_slab(Bytes size, const UniqueFd& memory,
                                         std::span<const SlabExtent> extents) {
  if (fails_create()) return injected(ErrorCode::kOutOfMemory);
  return inner_->copy_slab(size, memory, extents);
}

Status FaultyBackend::do_submit(CopyBatch batch) {
  const std::lock_guard lock(mutex_);
  mark(batch);
  if (script_.hold_copies) {
    ++faults_.held;
    held_.push_back(std::move(batch));
    set_nudge();
    return {};
  }
  const Ticket ticket = batch.ticket;
  Status submitted = inner_->submit(std::move(batch));
  if (!submitted.ok()) unmark(ticket);
  return submitted;
}

void FaultyBackend::do_poll(std::vector<Completion>& completed) {
  const std::lock_guard lock(mutex_);
  if (!held_.empty() && std::bernoulli_distribution(script_.release_chance)(random_)) release_one();
  std::vector<Completion> finished = std::exchange(refused_, {});
  set_nudge();
  inner_->poll(finished);
  for (Completion& completion : finished) report(std::move(completion), completed);
}

// A failing batch still takes its place in its queue, empty, so that its end comes in order.
void FaultyBackend::mark(CopyBatch& batch) {
  const std::uint64_t number = ++copies_;
  if (script_.fail_copies.contains(number)) {
    ++faults_.failed_copies;
    failing_.insert(batch.ticket);
    batch.extents.clear();
    batch.fence = {};
  }
  if (script_.lose_fences.contains(number)) {
    ++faults_.lost_fences;
    batch.fence = {};
  }
  if (script_.duplicate_completions.contains(number)) duplicating_.insert(batch.ticket);
}

void FaultyBackend::unmark(Ticket ticket) {
  failing_.erase(ticket);
  duplicating_.erase(ticket);
}

Ticket FaultyBackend::release_one() {
  if (held_.empty()) return {};
  const auto chosen = held_.begin() + static_cast<std::ptrdiff_t>(choose());
  CopyBatch batch = std::move(*chosen);
  held_.erase(chosen);
  const Ticket ticket = batch.ticket;
  const Status submitted = inner_->submit(std::move(batch));
  if (!submitted.ok()) refused_.push_back({ticket, submitted, {}, {}});
  set_nudge();
  return ticket;
}

// The index of the held batch that goes next. Precondition: one is held.
std::size_t FaultyBackend::choose() {
  std::vector<std::size_t> free_to_go;
  bool seen[kDirections] = {};
  for (std::size_t i = 0; i < held_.size(); ++i) {
    bool& behind_another = seen[static_cast<std::size_t>(held_[i].direction)];
    if (!behind_another || script_.reorder_within_direction) free_to_go.push_back(i);
    behind_another = true;
  }
  return free_to_go[random_() % free_to_go.size()];
}

void FaultyBackend::report(Completion completion, std::vector<Completion>& completed) {
  if (failing_.erase(completion.ticket) > 0) {
    completion.status = injected(ErrorCode::kDeviceError);
  }
  if (duplicating_.erase(completion.ticket) > 0) {
    ++faults_.duplicates;
    completed.push_back(completion);
  }
  completed.push_back(std::move(completion));
}

void FaultyBackend::set_nudge() {
  const bool more = !refused_.empty() || (!held_.empty() && script_.release_chance > 0);
  eventfd_t ignored = 0;
  ::eventfd_read(nudge_.get(), &ignored);  // not readable: nothing to take back
  if (more) ::eventfd_write(nudge_.get(), 1);
}

}  // namespace kvd::kernels
