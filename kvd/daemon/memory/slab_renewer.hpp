#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "kernels/device/slab_source.hpp"

namespace kvd::daemon {

/// Makes memory for slabs that have none, and puts new in the place of old, on a thread of its own:
/// making 64 MiB of host memory takes 200 ms. The old is given up first, so that a full machine has
/// room for the new. Where there is none it is tried again after every `pause`, for ever; slabs of
/// another device or tier do not wait for that.
/// Source: kvd/DESIGN.md "Domains and quotas", "A start beside old memory".
/// Owner:  thread-safe. Destruction waits for the slab in hand alone.
class SlabRenewer {
 public:
  struct Job {
    kernels::SlabSource* backend = nullptr;  ///< must outlive the renewer
    SlabIndex slab;
    kernels::SlabHandle old;  ///< none: the slab has no memory
    Tier tier = Tier::kHbm;
    Bytes size;
    bool told = false;    ///< that there is no memory for it
    bool in_use = false;  ///< an engine may compute in the old memory: it stays as it is
  };
  /// Called on the renewer's thread; must not block for long.
  struct Answers {
    std::function<void(const Job&, const kernels::Slab&)> renewed;
    std::function<void(const Job&, const Error&)>
        failed;  ///< called once for each slab, which it keeps trying
  };

  explicit SlabRenewer(Answers answers, Nanoseconds pause = std::chrono::seconds(1));
  ~SlabRenewer();
  SlabRenewer(const SlabRenewer&) = delete;
  SlabRenewer& operator=(const SlabRenewer&) = delete;

  void renew(const Job& job);

 private:
  using Source = std::pair<kernels::SlabSource*, Tier>;

  void run();
  /// The next to carry out; none: the renewer is to end. Waits while all lack memory.
  std::optional<Job> take();
  /// False: there is no memory for it.
  [[nodiscard]] bool carry_out(Job& job);

  const Answers answers_;
  const Nanoseconds pause_;
  std::set<Source> short_;  ///< that had no memory, since the last pause; the thread's
  std::mutex mutex_;        // guards the members up to the thread
  std::condition_variable wake_;
  std::deque<Job> waiting_;
  bool has_more_ = false;  ///< since it was looked at
  bool stopping_ = false;
  std::thread thread_;  // last: starts when all else stands
};

}  // namespace kvd::daemon
