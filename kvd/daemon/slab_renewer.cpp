#include "kvd/daemon/slab_renewer.hpp"

#include <pthread.h>

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
  }
  wake_.notify_all();
}

void SlabRenewer::run() {
  for (;;) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      if (stopping_) return;
      job = waiting_.front();
      waiting_.pop_front();
    }
    carry_out(job);
  }
}

// Old memory that will not go stays with the backend until the process ends; nobody is given it.
void SlabRenewer::carry_out(const Job& job) {
  Status discarded = job.backend->discard_slab(job.old);
  if (!discarded.ok()) answers_.failed(job.slab, discarded.error());
  for (bool told = false;; told = true) {
    Result<kernels::Slab> made = job.backend->create_slab(job.tier, job.size);
    if (made.ok()) return answers_.renewed(job.slab, *made);
    if (!told) answers_.failed(job.slab, made.error());
    if (!pause()) return;
  }
}

bool SlabRenewer::pause() {
  std::unique_lock lock(mutex_);
  return !wake_.wait_for(lock, pause_, [this] { return stopping_; });
}

}  // namespace kvd::daemon
