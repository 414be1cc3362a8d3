#pragma once

#include <vector>

#include "kvd/core/dram_copies.hpp"
#include "kvd/core/ground.hpp"
#include "kvd/core/needs.hpp"
#include "kvd/core/promises.hpp"
#include "kvd/core/supply.hpp"

namespace kvd::core {

/// Who runs: asks the rotation policy about a domain whenever one of its engines steps, and turns
/// the answer into claims on memory for that engine, and into victims wherever they are.
///
/// Source: SuperInfer Algorithm 1; kvd/DESIGN.md "A step".
///
/// Owner: control thread. Cost: O(requests of the domain that do not wait in line, and those that
/// may come in).
class Rotation {
 public:
  Rotation(Ground& ground, DramCopies& copies, Needs& needs, Supply& supply, Promises& promises)
      : context_(ground.context),
        store_(ground.store),
        requests_(ground.requests),
        knowledge_(ground.knowledge),
        budget_(ground.budget),
        memory_(ground.memory),
        copies_(copies),
        needs_(needs),
        supply_(supply),
        promises_(promises) {}

  /// Decides for the domain of the engine that steps, and carries it out.
  void decide(Session& caller);
  /// What the policy is asked; `index` gets the request behind each entry.
  [[nodiscard]] planner::RotationSnapshot rotation_snapshot(DomainId domain,
                                                            std::vector<Request*>& index);
  [[nodiscard]] planner::RotationConfig rotation_config() const;

 private:
  [[nodiscard]] planner::RotationRequest as_rotation(Request& request);
  /// The waiting requests that may come in without promising more than HBM and DRAM hold together.
  [[nodiscard]] std::vector<Request*> admissible(DomainId domain);
  void renew_for_queue(DomainId domain);
  [[nodiscard]] bool stands_still(DomainId domain);
  void bring_in_head(Session& caller);
  void prefill_layerwise(Session& caller, const planner::RotationDecision& decision,
                         const std::vector<Request*>& index);
  void carry_out(Session& caller, const planner::RotationDecision& decision,
                 const std::vector<Request*>& index);

  Context& context_;
  store::Store& store_;
  Requests& requests_;
  Knowledge& knowledge_;
  Budget& budget_;
  RequestMemory& memory_;
  DramCopies& copies_;
  Needs& needs_;
  Supply& supply_;
  Promises& promises_;
};

}  // namespace kvd::core
