#pragma once

#include "kvd/core/moves/dram_copies.hpp"
#include "kvd/core/moves/ground.hpp"

namespace kvd::core {

/// What an engine says it did: checked before anything is changed, then counted.
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

  /// InvalidArgument, NotFound where it cannot be.
  [[nodiscard]] Status check(const Session& session, const Step& step);
  /// Counts it. Precondition: it was checked.
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
