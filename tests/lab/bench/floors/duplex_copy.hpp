#pragma once

#include <atomic>
#include <thread>
#include <vector>

#include "kernels/copy/copy_extent.hpp"
#include "tests/lab/bench/floors/nt_copy.hpp"

namespace kvd::bench {

/// Two threads, one for each direction, that copy their extents with non-temporal stores and do
/// nothing else: the best that full duplex can be. Ready to run when made; call run() once.
class DuplexCopy {
 public:
  DuplexCopy(const std::vector<kernels::CopyExtent>& in,
             const std::vector<kernels::CopyExtent>& out)
      : threads_{std::thread([this, &in] { copy(in); }), std::thread([this, &out] { copy(out); })} {
    while (ready_.load() < 2) std::this_thread::yield();
  }
  ~DuplexCopy() { run(); }
  DuplexCopy(const DuplexCopy&) = delete;
  DuplexCopy& operator=(const DuplexCopy&) = delete;

  void run() {
    go_ = true;
    go_.notify_all();
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }

 private:
  void copy(const std::vector<kernels::CopyExtent>& extents) {
    ++ready_;
    go_.wait(false);
    for (const kernels::CopyExtent& e : extents) {
      nt_copy(reinterpret_cast<void*>(e.destination), reinterpret_cast<const void*>(e.source),
              e.length.size());
    }
  }

  std::atomic<int> ready_ = 0;
  std::atomic<bool> go_ = false;
  std::thread threads_[2];
};

}  // namespace kvd::bench
