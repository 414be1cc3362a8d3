#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "ipc/vocabulary/clock.hpp"
#include "kvd/tiers/disk/files/event_fd.hpp"
#include "kvd/tiers/disk/files/folder.hpp"
#include "kvd/tiers/disk/workers/desk.hpp"
#include "kvd/tiers/disk/workers/flights.hpp"

namespace kvd::disk {

/// What a worker is made of.
struct WorkerParts {
  Folder folder;
  Layout layout;
  Segments segments;
  std::unique_ptr<Io> io;
  std::shared_ptr<const Clock> clock;
  SumFunction sum = group_sum;
  Bytes floor;
  std::uint32_t depth = 0;
  std::uint32_t queue = 0;
};

/// The tier's thread: takes requests from the desk, keeps the device busy, verifies, answers.
/// Owner: its functions are thread-safe. It may be destroyed once wait_ended() has said so;
/// otherwise it is abandoned and kept for ever.
class Worker {
 public:
  Worker(WorkerParts parts, EventFd wake, EventFd done);
  ~Worker() { thread_.join(); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Errors: those of Desk.
  Status add(Request request, Nanoseconds patience);
  void poll(std::vector<Completion>& completions);
  [[nodiscard]] int completion_fd() const { return done_.get(); }
  Desk& desk() { return desk_; }
  [[nodiscard]] const WorkerParts& parts() const { return parts_; }

  /// Ends the requests that have not started, lets the device finish, then writes the checkpoint,
  /// if any. Called once.
  void close(std::vector<FoundBlock> checkpoint, bool with_checkpoint);
  /// False when that did not happen in time.
  bool wait_ended(Nanoseconds patience);
  [[nodiscard]] Status checkpoint_written();
  /// Call it before the worker is kept for ever: nobody joins its thread, which ends when the
  /// device answers.
  void abandon() { thread_.detach(); }

 private:
  void run();
  void wait();
  void reap();
  void start(Waiting waiting, std::vector<Completion>& completions);
  void deliver(std::vector<Completion>& completions);
  [[nodiscard]] bool low_on_space();
  void end();

  const WorkerParts parts_;
  const EventFd wake_, done_;
  Desk desk_;

  // The thread's own:
  Flights flights_;
  std::vector<Outcome> outcomes_;
  bool low_ = false;
  TimePoint low_until_{0};  ///< when the file system is asked again

  std::mutex mutex_;  // guards what follows
  std::condition_variable ended_changed_;
  std::vector<FoundBlock> checkpoint_;
  bool with_checkpoint_ = false, ended_ = false;
  Status checkpoint_status_;
  std::thread thread_;  // last: starts when all else stands
};

}  // namespace kvd::disk
