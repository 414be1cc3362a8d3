#pragma once

#include <optional>
#include <vector>

#include "kvd/core/moves/ground.hpp"
#include "kvd/core/moves/needs.hpp"
#include "kvd/core/moves/supply.hpp"

namespace kvd::core {

/// Decides which requests may prefill: at each step of an engine it asks the admission policy about
/// that engine's queue. It acts by holding waiting requests back and by bounding the prompt tokens
/// that a step takes. A prompt that prefills layer by layer retains no layers: it leaves after its
/// first token and comes back whole, because the link carries few of an overload's blocks
/// (rotation.cpp).
///
/// Source: LayerKV Algorithm 1 (the policy); kvd design (what becomes of its answer).
///
/// Owner: control thread. Cost: O(requests of the session).
class Admission : private Part {
 public:
  Admission(Ground& ground, Needs& needs, Supply& supply)
      : Part(ground),
        knowledge_(ground.knowledge),
        line_(ground.line),
        needs_(needs),
        supply_(supply) {}

  /// Decides for this step of the session.
  void admit(Session& session);
  /// What the policy is asked; `queue` gets the request behind each entry of its queue.
  [[nodiscard]] AdmissionInput admission_input(Session& session, std::vector<Request*>& queue);

 private:
  [[nodiscard]] planner::DecodingRequest decoding_request(const Session& session, Request& request);
  [[nodiscard]] bool may_take_long_steps(const Session& session);
  [[nodiscard]] std::int64_t sharers(const Session& session) const;
  [[nodiscard]] bool parks(const Session& session);
  [[nodiscard]] bool holds_all(const Session& session);
  [[nodiscard]] Blocks supply_blocks(const Session& session);

  Knowledge& knowledge_;
  ServingOrder& line_;
  Needs& needs_;
  Supply& supply_;
};

}  // namespace kvd::core
