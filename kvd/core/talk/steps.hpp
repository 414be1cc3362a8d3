#pragma once

#include "kvd/core/deciding/admission.hpp"
#include "kvd/core/deciding/claims.hpp"
#include "kvd/core/deciding/layer_plans.hpp"
#include "kvd/core/deciding/rotation.hpp"
#include "kvd/core/deciding/standstills.hpp"
#include "kvd/core/moves/compactor.hpp"
#include "kvd/core/moves/dram_copies.hpp"
#include "kvd/core/moves/ground.hpp"
#include "kvd/core/moves/needs.hpp"
#include "kvd/core/moves/promises.hpp"
#include "kvd/core/moves/regions.hpp"
#include "kvd/core/moves/streams.hpp"
#include "kvd/core/moves/swaps.hpp"
#include "kvd/core/talk/replies.hpp"
#include "kvd/core/talk/reports.hpp"

namespace kvd::core {

/// One step of an engine: what it did comes in, and what it is to do next goes out. The order of
/// the lines is the algorithm.
///
/// Source: kvd/DESIGN.md "A step".
///
/// Owner: control thread. Errors: InvalidArgument or NotFound for a step that cannot be true; then
/// nothing changes.
class Steps {
 public:
  Steps(Ground& ground, Compactor& compactor, DramCopies& copies, Streams& streams, Needs& needs,
        Swaps& swaps, Promises& promises, Regions& regions, Claims& claims, LayerPlans& plans,
        Admission& admission, Rotation& rotation, Reports& reports, Replies& replies,
        Standstills& standstills)
      : context_(ground.context),
        knowledge_(ground.knowledge),
        drains_(ground.drains),
        line_(ground.line),
        compactor_(compactor),
        copies_(copies),
        streams_(streams),
        needs_(needs),
        swaps_(swaps),
        promises_(promises),
        regions_(regions),
        claims_(claims),
        plans_(plans),
        admission_(admission),
        rotation_(rotation),
        reports_(reports),
        replies_(replies),
        standstills_(standstills) {}

  /// Takes in what the engine did and decides what it does next.
  [[nodiscard]] Result<StepReply> next(Session& session, const Step& step);

 private:
  Context& context_;
  Knowledge& knowledge_;
  Drains& drains_;
  ServingOrder& line_;
  Compactor& compactor_;
  DramCopies& copies_;
  Streams& streams_;
  Needs& needs_;
  Swaps& swaps_;
  Promises& promises_;
  Regions& regions_;
  Claims& claims_;
  LayerPlans& plans_;
  Admission& admission_;
  Rotation& rotation_;
  Reports& reports_;
  Replies& replies_;
  Standstills& standstills_;
};

}  // namespace kvd::core
