#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "kvd/mover/mover.hpp"

namespace kvd::mover {

/// A mover for each device, and what goes to which. A copy of a group whose ranks are on several
/// devices is one copy on each; it has ended when all have.
/// Source: kvd/DESIGN.md "Bytes on their way".
/// Owner:  control thread.
class Movers {
 public:
  /// All must outlive it.
  Movers(const std::vector<kernels::CopyQueues*>& backends, const SlabStore& slabs);

  /// Like Mover::copy. Precondition: all of it belongs to one device.
  void copy(const core::CopySlots& copy, std::atomic<std::uint64_t>* fence);
  /// The same for one device or several. The fence is written here, in the order of its copies, so
  /// all copies with that fence have to come this way.
  void copy_apart(const core::CopySlots& copy, std::atomic<std::uint64_t>* fence);
  /// Like Mover::copy. A region is on one device.
  void copy(const core::CopyRanges& copy);
  /// Like Mover::drop, for all parts of the copy.
  void drop(Ticket copy);
  void move(const core::MoveSlots& move) { movers_.front()->move(move); }
  void scrub(const core::Scrub& scrub);
  void stream(const core::StreamLayers& stream, LayerWords words);
  void end_stream(Ticket stream);

  void poll(std::vector<core::CopyFinished>& finished);
  [[nodiscard]] bool busy() const;
  [[nodiscard]] bool awaits_progress() const;
  /// Like Mover::fall_asleep, for all movers.
  [[nodiscard]] bool fall_asleep();
  /// Adds up all devices.
  [[nodiscard]] MoverCounters counters() const;

 private:
  struct Apart {
    core::CopyFinished result;
    std::size_t parts = 0;  ///< still under way
    std::atomic<std::uint64_t>* fence = nullptr;
  };
  struct Due {
    Ticket copy;
    bool complete = false;
  };

  [[nodiscard]] Mover& mover_of(SlabIndex slab) { return *movers_[slabs_->device_of(slab).value]; }
  void part_ended(const core::CopyFinished& part, std::vector<core::CopyFinished>& finished);
  void publish(const Apart& copy);

  const SlabStore* slabs_;
  std::vector<std::unique_ptr<Mover>> movers_;    ///< by device
  std::unordered_map<Ticket, DeviceId> streams_;  ///< under way, where there are several devices
  std::unordered_map<Ticket, Apart> apart_;
  std::unordered_map<std::atomic<std::uint64_t>*, std::deque<Due>> due_;
  std::vector<core::CopyFinished> ended_;
};

}  // namespace kvd::mover
