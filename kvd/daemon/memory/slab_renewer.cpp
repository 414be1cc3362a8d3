#include "kvd/daemon/memory/slab_renewer.hpp"

#include <pthread.h>

#include <algorithm>
#include <utility>

namespace kvd::daemon {

SlabRenewer::SlabRenewer(Answers answers, Nanoseconds pause)
    : answers_(std::move(answers)), pause_(pause), thread_([this] { run(); }) {
  ::pthread_setname_np(thread_.native_handle(), "kvd-renewer");
}

SlabRenewer::~SlabRenewer() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void SlabRenewer::renew(const Job& job) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(job);
    has_more_ = true;
  }
  wake_.notify_all();
}

void SlabRenewer::run() {
  while (std::optional<Job> job = take()) {
    if (carry_out(*job)) continue;
    short_.insert({job->backend, job->tier});
    const std::lock_guard lock(mutex_);
    waiting_.push_front(*job);
  }
}

// What gives memory up is not kept waiting by what finds none.
std::optional<SlabRenewer::Job> SlabRenewer::take() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (stopping_) return std::nullopt;
    const auto next = std::find_if(waiting_.begin(), waiting_.end(), [this](const Job& job) {
      return job.old || !short_.contains({job.backend, job.tier});
    });
    if (next != waiting_.end()) {
      const Job job = *next;
      waiting_.erase(next);
      return job;
    }
    has_more_ = false;
    const auto woken = [this] { return stopping_ || has_more_; };
    if (waiting_.empty()) {
      wake_.wait(lock, woken);
    } else if (!wake_.wait_for(lock, pause_, woken)) {
      short_.clear();
    }
  }
}

// Old memory that will not go stays with the backend until the process ends; nobody is given it.
bool SlabRenewer::carry_out(Job& job) {
  if (job.old) {
    const Status discarded =
        job.in_use ? job.backend->destroy_slab(job.old) : job.backend->discard_slab(job.old);
    if (!discarded.ok()) answers_.failed(job, discarded.error());
    job.old = {};
    short_.clear();
  }
  Result<kernels::Slab> made = job.backend->create_slab(job.tier, job.size);
  if (made.ok()) return answers_.renewed(job, *made), true;
  if (!std::exchange(job.told, true)) answers_.failed(job, made.error());
  return false;
}

}  // namespace kvd::daemon
