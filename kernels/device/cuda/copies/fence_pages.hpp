#pragma once

#include <cuda.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kernels/device/cuda/driver/context.hpp"
#include "kernels/device/cuda/driver/health.hpp"
#include "kernels/device/cuda/memory/host_registration.hpp"

namespace kvd::kernels::cuda {

/// The pages shared with clients in which copy queues may write fence words. They are registered
/// with the driver. A page that a queued write may still reach stays registered, even after its
/// release. A thread of its own lets go of the others, since the driver then waits for all streams
/// (H200 with driver 580: deploy/gpu-reports, E18).
/// Owner: thread-safe. A context is current in adopt and at destruction.
class FencePages {
  struct Page {
    std::shared_ptr<const void>
        mapping;  // mapping of a released page; first, so that it outlives the registration
    HostRegistration registration;
    std::vector<std::uint64_t>
        queued;              // by word: the highest value that a stream was told to write
    std::size_t writes = 0;  // writes that were announced and are not yet known to be done
  };

 public:
  /// Where a stream writes one fence; none where the CPU has to write it.
  class Target {
   public:
    [[nodiscard]] CUdeviceptr address() const { return address_; }
    explicit operator bool() const { return page_ != nullptr; }

   private:
    friend class FencePages;
    Page* page_ = nullptr;
    std::size_t word_ = 0;
    CUdeviceptr address_ = 0;
  };

  FencePages(const PrimaryContext& context, const Health& health);
  FencePages(const FencePages&) = delete;
  FencePages& operator=(const FencePages&) = delete;
  /// Waits until all released pages have been let go.
  ~FencePages();

  /// Errors: InvalidArgument for a range that is not whole pages or overlaps an adopted one; those
  /// of the driver.
  [[nodiscard]] Status adopt(const Driver& driver, std::uintptr_t address, Bytes size);
  /// `mapping`: keeps the page mapped, and is held for as long as the page is registered.
  void release(std::uintptr_t address, std::shared_ptr<const void> mapping);
  [[nodiscard]] bool any() const;

  /// Announces a write. Every target has to be passed to done(), except on a lost device.
  [[nodiscard]] Target target(const std::atomic<std::uint64_t>* word);
  /// Whether `value` is more than what was queued for the word so far; if so, it counts as queued.
  /// A stream can only store, and a ticket that was reached must stay reached in whatever order
  /// batches are issued. Precondition: the batches of a word all go in one direction.
  [[nodiscard]] bool raise(const Target& target, std::uint64_t value);
  void done(const Target& target);

 private:
  void let_go();

  const PrimaryContext& context_;
  const Health& health_;
  mutable std::mutex mutex_;  // guards everything up to the thread
  std::condition_variable wake_;
  std::map<std::uintptr_t, std::unique_ptr<Page>> pages_;
  std::vector<std::unique_ptr<Page>> kept_;  // released too early, or with the device lost
  std::deque<std::unique_ptr<Page>> released_;
  bool stopping_ = false;
  std::thread thread_;  // last: it starts when all else exists
};

}  // namespace kvd::kernels::cuda
