#pragma once

#include "kvd/core/deciding/admission.hpp"
#include "kvd/core/deciding/claims.hpp"
#include "kvd/core/deciding/layer_plans.hpp"
#include "kvd/core/deciding/rotation.hpp"
#include "kvd/core/deciding/silence.hpp"
#include "kvd/core/deciding/standstills.hpp"
#include "kvd/core/moves/compactor.hpp"
#include "kvd/core/moves/dram_copies.hpp"
#include "kvd/core/moves/ground.hpp"
#include "kvd/core/moves/needs.hpp"
#include "kvd/core/moves/promises.hpp"
#include "kvd/core/moves/regions.hpp"
#include "kvd/core/moves/streams.hpp"
#include "kvd/core/moves/supply.hpp"
#include "kvd/core/moves/swaps.hpp"
#include "kvd/core/talk/commands.hpp"
#include "kvd/core/talk/ranks.hpp"
#include "kvd/core/talk/replies.hpp"
#include "kvd/core/talk/reports.hpp"
#include "kvd/core/talk/sessions.hpp"
#include "kvd/core/talk/steps.hpp"

namespace kvd::core {

/// All parts that decide, put together on the ground they stand on. A part is given those above it,
/// and calls no other.
///
/// Owner: control thread. The ground outlives it.
struct Parts {
  explicit Parts(Ground& ground)
      : compactor(ground),
        copies(ground),
        streams(ground),
        needs(ground),
        supply(ground, needs),
        swaps(ground, copies, streams, compactor),
        promises(ground, supply),
        regions(ground, copies, needs, supply, promises),
        plans(ground),
        claims(ground, copies, streams, needs, supply, swaps, promises, regions, plans),
        admission(ground, needs, supply),
        rotation(ground, copies, needs, supply, promises),
        reports(ground, copies),
        replies(ground, streams),
        silence(ground, needs, regions),
        standstills(ground, needs, supply, silence),
        steps(ground, compactor, copies, streams, needs, swaps, promises, regions, claims, plans,
              admission, rotation, reports, replies, standstills),
        ranks(ground, swaps, claims, steps),
        sessions(ground, streams, regions, claims),
        commands(ground, needs, supply, swaps, regions, claims, plans, steps, ranks) {}

  Compactor compactor;
  DramCopies copies;
  Streams streams;
  Needs needs;
  Supply supply;
  Swaps swaps;
  Promises promises;
  Regions regions;
  LayerPlans plans;
  Claims claims;
  Admission admission;
  Rotation rotation;
  Reports reports;
  Replies replies;
  Silence silence;
  Standstills standstills;
  Steps steps;
  Ranks ranks;
  Sessions sessions;
  Commands commands;
};

}  // namespace kvd::core
