#pragma once

#include "kvd/core/moves/dram_copies.hpp"
#include "kvd/core/moves/ground.hpp"

namespace kvd::core {

/// Takes in what an engine says it did: it is checked before anything changes, and then counted.
///
/// Owner: control thread. Cost: O(reports log requests).
class Reports {
 public:
  Reports(Ground& ground, DramCopies& copies)
      : context_(ground.context),
        store_(ground.store),
        requests_(ground.requests),
        knowledge_(ground.knowledge),
        lateness_(ground.lateness),
        memory_(ground.memory),
        copies_(copies) {}

  /// InvalidArgument or NotFound where the step cannot be true.
  [[nodiscard]] Status check(const Session& session, const Step& step);
  /// Counts the step. Precondition: it was checked.
  void take(Session& session, const Step& step);

 private:
  void take_report(Session& session, Request& request, const StepReport& report);

  Context& context_;
  store::Store& store_;
  Requests& requests_;
  Knowledge& knowledge_;
  Lateness& lateness_;
  RequestMemory& memory_;
  DramCopies& copies_;
};

}  // namespace kvd::core
