#pragma once

#include "kvd/core/moves/ground.hpp"
#include "kvd/core/moves/supply.hpp"

namespace kvd::core {

/// Decides who leaves for others. A request of the engine that steps leaves once its iteration has
/// finished. A request of another engine is promised, until that engine steps or nobody needs it
/// any more.
///
/// Owner: control thread. Cost: O(requests of the domain that do not wait in line).
class Promises : private Part {
 public:
  Promises(Ground& ground, Supply& supply) : Part(ground), supply_(supply) {}

  /// `caller`: the engine that steps.
  void preempt(Request& request, EngineId caller, Promise why);
  /// The engine steps: those of its requests that were promised to others leave.
  void acknowledge(Session& session);
  /// Ends promises for this share that nobody needs any more.
  void expire(Share share);

 private:
  [[nodiscard]] bool needed_elsewhere(const Request& request, Share share);

  Supply& supply_;
};

}  // namespace kvd::core
