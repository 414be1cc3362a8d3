#pragma once

#include <algorithm>
#include <set>
#include <vector>

#include "kvd/core/deciding/reservations.hpp"
#include "kvd/core/moves/dram_copies.hpp"
#include "kvd/core/moves/ground.hpp"
#include "kvd/core/moves/needs.hpp"
#include "kvd/core/moves/promises.hpp"
#include "kvd/core/moves/supply.hpp"

namespace kvd::core {

/// Decides who runs. It asks the rotation policy about a domain's share of a device whenever an
/// engine there steps, and turns the answer into claims on memory for that engine, and into victims
/// wherever they are. A request that needs several devices comes in where each of them chose it.
///
/// Source: SuperInfer Algorithm 1; kvd/DESIGN.md "A step".
///
/// Owner: control thread. Cost: O(requests of the domain that do not wait in line, and those that
/// may come in).
class Rotation : private Part {
 public:
  Rotation(Ground& ground, DramCopies& copies, Needs& needs, Supply& supply, Promises& promises)
      : Part(ground),
        knowledge_(ground.knowledge),
        budget_(ground.budget),
        copies_(copies),
        needs_(needs),
        supply_(supply),
        promises_(promises),
        reservations_(ground) {}

  /// Decides for the domain of the engine that steps, on each of its devices, and carries it out.
  void decide(Session& caller);
  /// What the policy is asked; `index` gets the request behind each entry.
  [[nodiscard]] planner::RotationSnapshot rotation_snapshot(Share share,
                                                            std::vector<Request*>& index);

 private:
  /// What is decided on one device.
  struct Decided {
    Share share;
    std::vector<Request*> index;  ///< the request behind each entry of the snapshot
    const planner::RotationDecision* decision = nullptr;
    bool standing = false;  ///< some request queues, and none has HBM or is about to get it
  };
  [[nodiscard]] Decided ask(Share share);
  void decide_on_several(Session& caller);
  [[nodiscard]] planner::RotationRequest as_rotation(Request& request, DeviceId device);
  void renew_for_queue(Share share);
  [[nodiscard]] bool stands_still(Share share);
  void bring_in_head(Session& caller);
  void prefill_layerwise(Session& caller, const Decided& decided);
  using Chosen = std::set<const Request*>;
  void carry_out(Session& caller, const Decided& decided, const Chosen* everywhere);

  Knowledge& knowledge_;
  Budget& budget_;
  DramCopies& copies_;
  Needs& needs_;
  Supply& supply_;
  Promises& promises_;
  Reservations reservations_;
};

}  // namespace kvd::core
