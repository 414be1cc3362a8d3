#pragma once

#include <string>

#include "kvd/core/cache/engine_labels.hpp"
#include "kvd/core/deciding/claims.hpp"
#include "kvd/core/deciding/engine_placed.hpp"
#include "kvd/core/deciding/layer_plans.hpp"
#include "kvd/core/moves/ground.hpp"
#include "kvd/core/moves/needs.hpp"
#include "kvd/core/moves/regions.hpp"
#include "kvd/core/moves/supply.hpp"
#include "kvd/core/moves/swaps.hpp"
#include "kvd/core/talk/ranks.hpp"
#include "kvd/core/talk/steps.hpp"

namespace kvd::core {

/// Carries out the commands of engines. Each is answered by exactly one reply, now or by its
/// deadline.
///
/// Source: ipc/PROTOCOL.md.
///
/// Owner: control thread.
class Commands : private Part {
 public:
  Commands(Ground& ground, Needs& needs, Supply& supply, Swaps& swaps, Regions& regions,
           Claims& claims, LayerPlans& plans, Steps& steps, Ranks& ranks)
      : Part(ground),
        knowledge_(ground.knowledge),
        prefixes_(ground.prefixes),
        caches_(ground.engine_caches),
        labels_(ground.context, ground.store, ground.requests, ground.disk.classes()),
        drains_(ground.drains),
        spaces_(ground.spaces),
        needs_(needs),
        supply_(supply),
        swaps_(swaps),
        regions_(regions),
        claims_(claims),
        plans_(plans),
        steps_(steps),
        ranks_(ranks),
        placed_(ground, needs) {}

  /// Answers StaleSession, DeadlineExceeded, or as the command says.
  void on_command(const Command& command);

 private:
  void on_end(const Command& command, RequestId id, bool finished);
  void on_submit(const Command& command, const Submit& submit);
  void on_step(const Command& command, const Step& step);
  void on_blocks(const Command& command, const AllocateBlocks& wanted);
  [[nodiscard]] std::string silent_holder(const Session& session);
  void on_name(const Command& command, const NameBlocks& names);
  void on_rotate(const Command& command, const Rotate& rotate);
  void on_gaps(const Command& command, const SetGaps& named);
  void on_share(const Command& command, const ShareSpace& share);
  void on_stats(const Command& command);

  Knowledge& knowledge_;
  Prefixes& prefixes_;
  EngineCaches& caches_;
  EngineLabels labels_;
  const Drains& drains_;
  Spaces& spaces_;
  Needs& needs_;
  Supply& supply_;
  Swaps& swaps_;
  Regions& regions_;
  Claims& claims_;
  LayerPlans& plans_;
  Steps& steps_;
  Ranks& ranks_;
  EnginePlaced placed_;
};

}  // namespace kvd::core
