#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "client_lib/engine/model/transformer.hpp"
#include "client_lib/engine/serve/kv_memory.hpp"
#include "ipc/vocabulary/clock.hpp"

namespace kvd::engine {

/// One iteration to be computed. `batch` has a sequence for each run, over tokens and slots that
/// stay as they are until it has finished.
struct Iteration {
  Grant grant;
  std::vector<Sequence> batch;
};

/// How it went.
struct Outcome {
  Result<std::vector<std::vector<float>>> logits;  ///< only for sequences that want logits
  Nanoseconds took{0};
  Nanoseconds waited{0};  ///< of that, for copies
};

/// Computes iterations one at a time: beside its owner on a thread of its own, or in finish().
/// Source: kvd/DESIGN.md "A step": `step` is called while the iteration before runs.
/// Owner:  one thread calls start() and finish() in turn.
class IterationRunner {
 public:
  /// The referred objects outlive this one. `least` is the shortest time that an iteration takes:
  /// the computing thread sleeps for the rest of it.
  IterationRunner(Transformer& model, KvMemory& memory, const Clock& clock, bool own_thread,
                  Nanoseconds least = Nanoseconds{0});
  ~IterationRunner();
  IterationRunner(const IterationRunner&) = delete;
  IterationRunner& operator=(const IterationRunner&) = delete;

  /// `iteration` stays as it is until finish().
  void start(const Iteration& iteration);
  /// Errors: those of the model and of the memory; the iteration's tokens are to be dropped then.
  [[nodiscard]] Outcome finish();

 private:
  [[nodiscard]] Outcome compute(const Iteration& iteration);
  void serve();

  Transformer& model_;
  KvMemory& memory_;
  const Clock& clock_;
  const Nanoseconds least_;

  std::mutex mutex_;
  std::condition_variable changed_;
  const Iteration* started_ = nullptr;
  std::optional<Outcome> finished_;
  bool stop_ = false;
  std::thread thread_;  ///< last: it uses the others
};

}  // namespace kvd::engine
