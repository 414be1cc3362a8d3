#pragma once

#include <cstdint>

#include "kvd/core/deciding/claims.hpp"
#include "kvd/core/moves/ground.hpp"
#include "kvd/core/moves/swaps.hpp"
#include "kvd/core/talk/steps.hpp"

namespace kvd::core {

/// Tensor-parallel groups: several processes, one engine. All ranks run the same requests in the
/// same iterations. So the step is decided once, for the first rank that asks, and the other ranks
/// get the same answer to whatever they ask meanwhile. What depends on all ranks waits for the
/// last: blocks are sealed, and leave, only once every rank has finished the iteration that wrote
/// them.
///
/// Owner: control thread. Cost: O(ranks) besides that of the step.
class Ranks : private Part {
 public:
  Ranks(Ground& ground, Swaps& swaps, Claims& claims, Steps& steps)
      : Part(ground), swaps_(swaps), claims_(claims), steps_(steps) {}

  /// Decides the step, repeats its answer, or lets a rank that is ahead wait.
  void on_step(const Command& command, const Step& step);
  /// Refuses steps that have waited for the other ranks until their deadline.
  void expire_ahead(Session& session);

 private:
  [[nodiscard]] Status check(const Session& session, std::uint32_t rank, const Step& step) const;
  void take_answer(Session& session, const Command& command);
  void note_finished(Session& session, std::uint32_t rank, std::uint64_t iteration);
  void serve_ahead(Session& session);
  void refuse_ahead(const Session& session, const Command& command);

  Swaps& swaps_;
  Claims& claims_;
  Steps& steps_;
};

}  // namespace kvd::core
