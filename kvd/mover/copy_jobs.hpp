#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "kernels/device/copy_queues.hpp"
#include "kvd/core/door/effects.hpp"
#include "kvd/mover/job_turns.hpp"
#include "kvd/mover/run_cursor.hpp"

namespace kvd::mover {

/// A copy that somebody waits for goes ahead of one that nobody waits for.
enum class Urgency : std::uint8_t { kAwaited = 0, kBackground = 1 };
constexpr std::size_t kUrgencies = 2;

/// Copies and scrubs of one direction, handed out burst by burst. Jobs of one urgency take turns by
/// owner (JobTurns). Knows no device.
///
/// Fences: the values of one word are published in the order of their jobs, each when its own bytes
/// and those of all before are complete. The device does it for a job of one burst with none before
/// it; for the others it is done here, once their last burst has ended (safety rule 1). After a
/// failure no value of the word that is still under way is published, as its session cannot go on.
/// After a drop none is either, as its session has ended.
/// Owner: control thread. A fence's word must live until its job is told finished.
class CopyJobs {
 public:
  struct Burst {
    std::vector<kernels::CopyExtent> extents;
    kernels::Fence fence;   ///< for the device to write
    bool in_place = false;  ///< the job crosses no link
  };

  struct Order {
    Ticket job;
    Owner owner;
    Urgency urgency = Urgency::kAwaited;
    RunCursor runs;
    kernels::Fence fence{};
    bool in_place = false;  ///< it copies from one place of a tier to another
  };
  void add(Order order);
  /// Hands out nothing more of the job, and reports it as dropped once none of it is in flight. A
  /// job that is all handed out ends as usual; an unknown one has ended.
  void drop(Ticket job);

  /// The next burst of the urgency, with the number that finished() is to be told; `but`: no burst
  /// of that domain.
  [[nodiscard]] std::optional<Burst> next(Urgency urgency, Ticket burst, Bytes limit,
                                          std::optional<DomainId> but = {});
  /// A number that is not known was reported before.
  void finished(Ticket burst, bool ok, Bytes bytes, Nanoseconds busy);

  /// Appends the jobs that have ended since the last call.
  void take_ended(std::vector<core::CopyFinished>& ended);

 private:
  struct Job {
    Order order;
    core::CopyFinished result;
    std::uint32_t in_flight = 0;
    bool begun = false;
    bool waits = true;  ///< a part of it has not been handed out yet
  };
  struct Due {  ///< a fence that is not published yet
    Ticket job;
    std::uint64_t value;
    bool complete = false;  ///< its own bytes are there
  };

  void stop_waiting(Job& job);
  void end(Job& job);
  void publish_due(const Job& job);
  void give_up_fences(std::atomic<std::uint64_t>* word);

  std::unordered_map<Ticket, Job> jobs_;
  std::array<JobTurns, kUrgencies> waiting_;
  std::unordered_map<Ticket, Ticket> flying_;  ///< burst to job
  std::unordered_map<std::atomic<std::uint64_t>*, std::deque<Due>> due_;
  std::vector<core::CopyFinished> ended_;
};

}  // namespace kvd::mover
