#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvd/core/moves/ground.hpp"

namespace kvd::core {

/// Decides which layers stay in HBM: when to ask for a plan, what a new plan changes, and who
/// pauses. The solver works elsewhere; nobody waits for it. Also answers the `place` command: what
/// the placement policy would do with a batch now.
///
/// Source: OrbitFlow sec. 3.4 and 4.3 (expiry, batch change and mismatch as triggers; pause the
/// largest, resume after an end); kvd/DESIGN.md "Blocks that come and go".
///
/// Owner: control thread. Cost: O(requests of the session).
class LayerPlans : private Part {
 public:
  explicit LayerPlans(Ground& ground) : Part(ground), knowledge_(ground.knowledge) {}

  /// Asks for a plan where the one in force has expired, or was made for another batch.
  void renew(Session& session);
  /// The solver has answered.
  void on_plan(const PlanReady& ready);
  /// The request keeps its blocks and does not run until a request of its session ends. Its staging
  /// is freed.
  void pause(Session& session, Request& request);
  /// The session's layers stream no more: no request stays paused.
  void forget(Session& session);
  void on_place(const Command& command, const Place& place);
  /// Answers an engine that places its blocks with the last plan, and has the next one made.
  void on_layers(const Command& command, const PlanLayers& asked);
  /// What the placement policy is asked about these requests.
  [[nodiscard]] PlacementInput placement_input(Session& session,
                                               const std::vector<RequestKey>& keys);

 private:
  [[nodiscard]] std::vector<RequestKey> batch_of(Session& session);
  void ask_plan(Session& session, const std::string& policy);
  void adopt_plan(Session& session, const planner::PlacementDecision& decision);
  void adopt_layers(Session& session, LayersPlaced& own,
                    const Result<planner::PlacementDecision>& decision);
  void evict_paused(Session& session, const planner::PlacementDecision& decision, Blocks have);
  void answer_place(Session& session, const Result<planner::PlacementDecision>& decision);
  static void send_away(const Session& session, Request& request, std::int32_t layer);
  [[nodiscard]] planner::Seconds fetch_time(const Session& session);
  [[nodiscard]] Blocks room_for(Session& session, const std::vector<RequestKey>& keys);
  [[nodiscard]] static std::vector<std::int32_t> offloaded_layers(const Request& request);
  [[nodiscard]] planner::PlacementConfig placement_config() const;

  Knowledge& knowledge_;
  std::uint64_t last_pause_ = 0;
};

}  // namespace kvd::core
