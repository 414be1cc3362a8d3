#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "kernels/device/device_backend.hpp"

namespace kvd::daemon {

/// Puts new memory in the place of old, on a thread of its own: making 64 MiB of host memory takes
/// 200 ms. The old is given up first, so that a full machine has room for the new. Where there is
/// none it is tried again after every `pause`, for ever.
/// Source: kvd/DESIGN.md "Domains and quotas".
/// Owner:  thread-safe. Destruction waits for the slab in hand alone.
class SlabRenewer {
 public:
  struct Job {
    kernels::DeviceBackend* backend = nullptr;  ///< must outlive the renewer
    SlabIndex slab;
    kernels::SlabHandle old;
    Tier tier = Tier::kHbm;
    Bytes size;
  };
  /// Called on the renewer's thread; must not block for long.
  struct Answers {
    std::function<void(SlabIndex, kernels::Slab)> renewed;
    std::function<void(SlabIndex, Error)> failed;  ///< once a slab: it goes on trying
  };

  explicit SlabRenewer(Answers answers, Nanoseconds pause = std::chrono::seconds(1));
  ~SlabRenewer();
  SlabRenewer(const SlabRenewer&) = delete;
  SlabRenewer& operator=(const SlabRenewer&) = delete;

  void renew(const Job& job);

 private:
  void run();
  void carry_out(const Job& job);
  /// False when it is to end.
  [[nodiscard]] bool pause();

  const Answers answers_;
  const Nanoseconds pause_;
  std::mutex mutex_;  // guards the members up to the thread
  std::condition_variable wake_;
  std::deque<Job> waiting_;
  bool stopping_ = false;
  std::thread thread_;  // last: starts when all else stands
};

}  // namespace kvd::daemon
