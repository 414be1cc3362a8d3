#pragma once

#include "kvd/core/moves/dram_copies.hpp"
#include "kvd/core/moves/ground.hpp"

namespace kvd::core {

/// Takes in what an engine says it did: it is checked before anything changes, and then counted.
///
/// Owner: control thread. Cost: O(reports log requests).
class Reports : private Part {
 public:
  Reports(Ground& ground, DramCopies& copies)
      : Part(ground), knowledge_(ground.knowledge), lateness_(ground.lateness), copies_(copies) {}

  /// InvalidArgument or NotFound where the step cannot be true.
  [[nodiscard]] Status check(const Session& session, const Step& step);
  /// Counts the step. Precondition: it was checked.
  void take(Session& session, const Step& step);

 private:
  void take_report(Session& session, Request& request, const StepReport& report);

  Knowledge& knowledge_;
  Lateness& lateness_;
  DramCopies& copies_;
};

}  // namespace kvd::core
