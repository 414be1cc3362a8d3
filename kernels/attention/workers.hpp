#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace kvd::kernels {

/// Threads that share loops over independent items. Who takes which items never changes a result:
/// an item is computed as a whole by one thread, and sums never cross items.
/// Owner: one thread calls run(); the threads sleep in between.
class Workers {
 public:
  using Range = std::function<void(std::size_t begin, std::size_t end)>;

  /// `threads` counts the caller; 1: everything runs on it.
  explicit Workers(std::uint32_t threads);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  /// Covers [0, items) by calls of work, and returns when all have ended. A thread gets at least
  /// `grain` items, so that small loops stay on the caller.
  void run(std::size_t items, std::size_t grain, const Range& work);

 private:
  void serve(std::size_t piece);
  void do_piece(std::size_t piece) const;

  std::mutex mutex_;
  std::condition_variable begins_, ended_;
  std::uint64_t round_ = 0;
  std::size_t busy_ = 0;
  bool stop_ = false;
  // These describe the loop under way and are written only while nobody is busy.
  const Range* work_ = nullptr;
  std::size_t items_ = 0;
  std::size_t pieces_ = 1;
  std::vector<std::thread> threads_;
};

}  // namespace kvd::kernels
