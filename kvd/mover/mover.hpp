#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "kernels/device/copy_queues.hpp"
#include "kvd/core/door/effects.hpp"
#include "kvd/mover/copy_jobs.hpp"
#include "kvd/mover/counters.hpp"
#include "kvd/mover/layer_streamer.hpp"
#include "kvd/mover/slab_store.hpp"

namespace kvd::mover {

/// How much is put into a queue of the device at a time: what it moves in `time` at the rate
/// measured last, within the bounds. The queue never holds more than the bytes of two bursts, in
/// any number of pieces. So an urgent copy waits for two bursts at most.
struct BurstLimits {
  Nanoseconds time = std::chrono::microseconds(500);
  Bytes least = kKiB * 512;
  Bytes most = kMiB * 32;
};

/// Turns the Controller's copies of slots into copies of bytes: addresses instead of ids, the
/// longest runs, bounded bursts. Into HBM the fetches of streamed layers go first, then what
/// somebody waits for, then the rest; out of it swap-outs and stores, then eager copies. Domains
/// take turns in each of these, a burst at a time. Both directions work at once.
/// Source: kvd/DESIGN.md "Bytes on their way"; SuperInfer sec. 5 (full duplex, merged runs).
/// Owner:  control thread.
class Mover {
 public:
  /// Both must outlive the mover.
  Mover(kernels::CopyQueues& backend, const SlabStore& slabs, BurstLimits limits = {})
      : backend_(&backend), slabs_(&slabs), limits_(limits), layers_(slabs, counters_) {}
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  /// Queues the copy; `fence` of its engine gets the ticket when every byte is there. A copy the
  /// device refuses comes back from poll() as failed.
  void copy(const core::CopySlots& copy, std::atomic<std::uint64_t>* fence);
  /// Queues a copy of ranges of regions. Nobody waits for it at a fence.
  void copy(const core::CopyRanges& copy);
  /// Copies within DRAM, in the queue out of HBM, after all else there. It counts neither as runs
  /// nor towards the measured rate, since nothing of it crosses the link. The copy is needed no
  /// more: what is with the device ends, and the rest is not copied.
  void drop(Ticket copy);
  void move(const core::MoveSlots& move);
  void scrub(const core::Scrub& scrub);
  /// Streams layers as the effect says. The words must live until poll() says that it has ended.
  void stream(const core::StreamLayers& stream, LayerWords words);
  void end_stream(Ticket stream);

  /// Takes what the device has finished, gives it what is due next, and appends what has ended
  /// since the last call.
  void poll(std::vector<core::CopyFinished>& finished);

  /// Whether the device has work of ours, so that its completion descriptor will tell.
  [[nodiscard]] bool busy() const { return lanes_[0].in_flight + lanes_[1].in_flight > 0; }
  /// Whether a fetch waits for an engine's progress word.
  [[nodiscard]] bool awaits_progress() const { return layers_.awaits_progress(); }
  /// Call before sleeping: asks these engines to ring their bells. False: poll() first.
  [[nodiscard]] bool fall_asleep() { return !news_ && layers_.fall_asleep(); }

  [[nodiscard]] const MoverCounters& counters() const { return counters_; }

 private:
  struct Lane {
    CopyJobs jobs;
    std::uint32_t in_flight = 0;
    Bytes queued;  ///< bytes of those
    std::size_t pieces = 0;
    double rate = 0;  ///< bytes a second, of late; 0: not measured
  };
  struct Flying {
    kernels::Direction direction;
    Bytes bytes;
    std::size_t pieces = 0;
    bool layer = false;
    bool in_place = false;
  };

  Lane& lane(kernels::Direction direction) { return lanes_[static_cast<std::size_t>(direction)]; }
  void count_runs(kernels::Direction direction, const std::vector<kernels::CopyExtent>& runs);
  void take_completions();
  void finished(const kernels::Completion& done);
  void pump(kernels::Direction direction);
  [[nodiscard]] bool submit_next(kernels::Direction direction, Bytes limit);
  [[nodiscard]] bool submit_layers(Ticket number, Bytes limit);
  [[nodiscard]] bool submit_copy(kernels::Direction direction, Ticket number, Bytes limit,
                                 std::optional<DomainId> but = {});
  void submit(kernels::Direction direction, Ticket number, CopyJobs::Burst burst, bool layer);
  [[nodiscard]] Bytes burst_bytes(const Lane& lane) const;

  kernels::CopyQueues* backend_;
  const SlabStore* slabs_;
  const BurstLimits limits_;
  MoverCounters counters_;
  LayerStreamer layers_;
  std::array<Lane, kernels::kDirections> lanes_;
  std::unordered_map<Ticket, Flying> flying_;
  std::uint64_t last_burst_ = 0;
  std::vector<kernels::Completion> completions_;
  std::vector<core::CopyFinished> ended_;
  DomainId layers_of_;            ///< whose layers the last burst had
  std::uint32_t layers_row_ = 0;  ///< bursts of layers since the last one of anything else
  bool news_ = false;
};

}  // namespace kvd::mover
