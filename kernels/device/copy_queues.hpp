#pragma once

#include <memory>
#include <vector>

#include "kernels/device/slab_book.hpp"

namespace kvd::kernels {

/// Moves bytes between the slabs of a device, by one queue for each direction.
/// Source, owner, errors: as DeviceBackend.
class CopyQueues {
 public:
  virtual ~CopyQueues() = default;
  CopyQueues(const CopyQueues&) = delete;
  CopyQueues& operator=(const CopyQueues&) = delete;

  /// Queues a batch; never blocks on the copy. Extents must lie within live slabs.
  [[nodiscard]] Status submit(CopyBatch batch);
  /// Appends finished batches, in the order of completion for each direction; returns at once.
  void poll(std::vector<Completion>& completed);
  /// Readable while poll() has something to hand out; for the daemon's event loop.
  [[nodiscard]] virtual int completion_fd() const = 0;
  /// Changes the simulated link rate (host backend, `link.bandwidth`); zero lifts the throttle.
  virtual void set_link_bandwidth(BytesPerSecond) {}
  /// Lets the copy queues themselves write fence words within [address, address + size), a mapped
  /// page shared with one client; the fence then comes as early as the device can write it. Without
  /// it the CPU writes fences there once it has seen the copies end. Host: nothing to do. Errors:
  /// InvalidArgument for a range that is not whole pages or is already adopted.
  [[nodiscard]] virtual Status adopt_page(void* /*address*/, Bytes /*size*/) { return {}; }
  /// Ends the adoption and returns at once; unknown addresses are ignored. The page has to stay
  /// mapped until the device has let go of it, for which a driver may wait: `mapping` keeps it
  /// mapped, and is held until then. Call it after poll() has handed out the last batch with a
  /// fence in the page.
  virtual void release_page(void* /*address*/, const std::shared_ptr<const void>& /*mapping*/) {}
  /// Not ok once the device is lost: DeviceError with the cause. From then on every batch fails and
  /// no fence is written (only poison releases waiters, safety rule 2). Memory that a stray copy
  /// may still touch is kept until the process ends. Only a restart of kvd helps.
  [[nodiscard]] virtual Status health() const { return {}; }

 protected:
  /// `book` must outlive the queues.
  explicit CopyQueues(SlabBook& book) : book_(book) {}
  /// Every extent lies within live slabs.
  virtual Status do_submit(CopyBatch batch) = 0;
  virtual void do_poll(std::vector<Completion>& completed) = 0;

 private:
  SlabBook& book_;
};

}  // namespace kvd::kernels
