#include "kvd/tiers/disk/workers/worker.hpp"

#include <poll.h>
#include <pthread.h>

#include <chrono>
#include <utility>

#include "kvd/tiers/disk/files/checkpoint.hpp"
#include "kvd/tiers/disk/files/file_limit.hpp"

namespace kvd::disk {
namespace {

// How late the thread may notice that a request is overdue, and the longest that an idle thread
// sleeps.
constexpr int kBusyTickMs = 50, kIdleTickMs = 1000;
// How long an answer about free space holds.
constexpr Nanoseconds kSpaceHolds = std::chrono::seconds(1);

}  // namespace

Worker::Worker(WorkerParts parts, EventFd wake, EventFd done)
    : parts_(std::move(parts)),
      wake_(std::move(wake)),
      done_(std::move(done)),
      desk_(parts_.depth, parts_.queue),
      flights_(parts_.layout, parts_.segments, *parts_.io, parts_.sum),
      thread_([this] { run(); }) {
  ::pthread_setname_np(thread_.native_handle(), "kvd-disk");
}

Status Worker::add(Request request, Nanoseconds patience) {
  KVD_TRY(desk_.add(std::move(request), parts_.clock->now() + patience));
  wake_.signal();
  return {};
}

void Worker::poll(std::vector<Completion>& completions) {
  done_.drain();  // first: requests that end from here on signal again
  desk_.poll(completions);
}

void Worker::close(std::vector<FoundBlock> checkpoint, bool with_checkpoint) {
  {
    const std::lock_guard lock(mutex_);
    checkpoint_ = std::move(checkpoint);
    with_checkpoint_ = with_checkpoint;
  }
  desk_.close();
  wake_.signal();
}

bool Worker::wait_ended(Nanoseconds patience) {
  std::unique_lock lock(mutex_);
  return ended_changed_.wait_for(lock, patience, [this] { return ended_; });
}

Status Worker::checkpoint_written() {
  const std::lock_guard lock(mutex_);
  return checkpoint_status_;
}

// The device gets new work before each look at what it brought: looking takes a tenth of a
// millisecond a MiB.
void Worker::run() {
  const NoFileSizeSignal no_signal;
  std::vector<Completion> completions;
  do {
    const TimePoint now = parts_.clock->now();
    for (Waiting& waiting : desk_.take(flights_, now, completions)) {
      start(std::move(waiting), completions);
    }
    parts_.io->flush();
    if (!flights_.finish_one(completions) && completions.empty()) wait();
    reap();
    flights_.expire(parts_.clock->now(), completions);
    deliver(completions);
  } while (!desk_.finished());
  end();
}

void Worker::wait() {
  pollfd events[] = {{wake_.get(), POLLIN, 0}, {parts_.io->event_fd(), POLLIN, 0}};
  ::poll(events, 2, flights_.all() > 0 ? kBusyTickMs : kIdleTickMs);
  if (events[0].revents != 0) wake_.drain();
}

void Worker::reap() {
  outcomes_.clear();
  parts_.io->reap(outcomes_);
  for (const Outcome& outcome : outcomes_) flights_.settle(outcome);
}

void Worker::start(Waiting waiting, std::vector<Completion>& completions) {
  if (std::holds_alternative<NumberedStore>(waiting.request) && low_on_space()) {
    completions.push_back({ticket_of(waiting.request), Fault::kLowSpace, false, {}, {}});
    return;
  }
  flights_.start(std::move(waiting.request), waiting.deadline);
}

void Worker::deliver(std::vector<Completion>& completions) {
  if (completions.empty()) return;
  desk_.deliver(completions, flights_);
  done_.signal();
}

// Preallocated segments need no room, but where files are copied on write, or sparse, each store
// does. Where the file system does not answer here, the write itself will tell.
bool Worker::low_on_space() {
  const TimePoint now = parts_.clock->now();
  if (now >= low_until_) {
    const Result<Bytes> room = parts_.folder.room();
    low_ = room.ok() && *room < parts_.floor;
    low_until_ = now + kSpaceHolds;
  }
  return low_;
}

void Worker::end() {
  Status written;
  // close() has left these two to this thread.
  if (with_checkpoint_) written = write_checkpoint(parts_.folder, parts_.layout, checkpoint_);
  parts_.folder.touch();
  const std::lock_guard lock(mutex_);
  checkpoint_status_ = written;
  ended_ = true;
  ended_changed_.notify_all();
}

}  // namespace kvd::disk
