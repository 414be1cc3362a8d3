#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "kvd/core/deciding/admission.hpp"
#include "kvd/core/deciding/layer_plans.hpp"
#include "kvd/core/deciding/rotation.hpp"
#include "kvd/core/door/status.hpp"
#include "kvd/core/moves/ground.hpp"
#include "kvd/core/moves/regions.hpp"
#include "kvd/core/talk/waits.hpp"

namespace kvd::core {

/// What others may see of the Controller: one picture of everything at one instant.
///
/// Owner: control thread. Cost: O(everything); asked for a few times a second.
class StatusBuilder : private Part {
 public:
  StatusBuilder(Ground& ground, Regions& regions, LayerPlans& plans, Admission& admission,
                Rotation& rotation)
      : Part(ground),
        ground_(ground),
        knowledge_(ground.knowledge),
        budget_(ground.budget),
        drains_(ground.drains),
        disk_(ground.disk),
        regions_(regions),
        plans_(plans),
        admission_(admission),
        rotation_(rotation) {}

  [[nodiscard]] ControllerStatus build();

 private:
  void add_requests(ControllerStatus& out, std::map<EngineId, EngineStatus>& engines);
  void add_inputs(ControllerStatus& out);
  [[nodiscard]] DeviceStatus device_status(DeviceId device) const;
  [[nodiscard]] EngineStatus engine_status(const Session& session) const;
  [[nodiscard]] RequestStatus request_status(const Request& request, const Waits& waits) const;
  [[nodiscard]] RequestStatus placed_status(const Session& session,
                                            const PlacedRequest& request) const;
  /// `passes`: when its goal passes, where that is known.
  [[nodiscard]] RequestStatus seen_status(const Seen& request, bool runs,
                                          std::optional<TimePoint> passes) const;
  [[nodiscard]] PlanStatus plan_status(const Session& session) const;

  Ground& ground_;
  Knowledge& knowledge_;
  Budget& budget_;
  const Drains& drains_;
  DiskCache& disk_;
  Regions& regions_;
  LayerPlans& plans_;
  Admission& admission_;
  Rotation& rotation_;
};

}  // namespace kvd::core
