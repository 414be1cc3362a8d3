#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include "tests/support/fakecuda/cuda_api.hpp"

/// A primary context. Lives as long as the driver; only a retained one is usable.
struct CUctx_st {
  explicit CUctx_st(CUdevice ordinal) : device(ordinal) {}

  const CUdevice device;
  unsigned retained = 0;                        // driver().mutex
  std::shared_ptr<CUstream_st> legacy;          // driver().mutex; the NULL stream
  std::atomic<CUresult> latched{CUDA_SUCCESS};  // the first sticky error
};

namespace fakecuda {

struct Range {
  CUdeviceptr start = 0;
  std::size_t size = 0;
};

/// Work of one stream that others wait for: done once `stream` completed operation `number`.
struct Dependency {
  std::shared_ptr<CUstream_st> stream;
  std::uint64_t number = 0;
};

/// One entry of a stream. `run` returns what to latch in the context, or success.
struct Operation {
  std::function<CUresult(CUstream_st&)> run;
  std::vector<Range> touches = {};     // memory that must stay until it is done
  std::vector<Dependency> after = {};  // work of other streams
  bool even_if_latched = false;        // for what only marks completion
};

}  // namespace fakecuda

/// A stream: a queue and the thread that works on it, in order, with random delays.
struct CUstream_st : std::enable_shared_from_this<CUstream_st> {
  CUstream_st(CUcontext owner, unsigned stream_flags, std::uint64_t seed, unsigned hardware_queue);

  /// Starts the thread; it ends by itself after close() or abandon().
  void start();
  std::uint64_t submit(fakecuda::Operation operation);
  /// Waits while the stream is full, so a program that launches more is held up.
  void wait_for_room() const;
  /// Runs what is queued, then ends.
  void close();
  /// Ends without running what is queued; waits in progress give up.
  void abandon();
  void join();

  bool given_up() const { return abandoned_ || context->latched != CUDA_SUCCESS; }
  std::uint64_t submitted() const;
  bool done(std::uint64_t number) const;
  /// False when `give_up` said so before the operation was done.
  bool wait(std::uint64_t number, const std::function<bool()>& give_up) const;
  bool touches(CUdeviceptr start, std::size_t size) const;

  /// A random pause of at most FAKECUDA_DELAY_US; none at all now and then.
  void pause();
  bool coin(unsigned one_in) { return random() % one_in == 0; }

  const CUcontext context;
  const unsigned flags;
  const unsigned queue;    // number of the hardware queue, which streams share
  std::mt19937_64 random;  // the stream's thread

 private:
  void work();
  void run(fakecuda::Operation& operation);
  void await_time_slice() const;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::deque<fakecuda::Operation> queue_;  // the front one is running
  std::uint64_t submitted_ = 0;
  std::uint64_t completed_ = 0;
  bool closed_ = false;
  bool ended_ = false;
  std::atomic<bool> abandoned_{false};
};

/// What cuEventRecord captured last.
struct CUevent_st {
  /// Marked by the stream when it gets there.
  struct Mark {
    std::atomic<bool> reached{false};
    std::chrono::steady_clock::time_point at;  // before `reached`
  };
  CUcontext context = nullptr;
  unsigned flags = 0;
  fakecuda::Dependency captured;
  std::shared_ptr<Mark> mark;
  bool in_capture = false;  // recorded in a stream that was being captured
};
