#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvd/core/ledger/placing.hpp"
#include "kvd/core/moves/ground.hpp"
#include "kvd/core/moves/needs.hpp"
#include "planner/policy/admission/admission.hpp"
#include "planner/policy/rotation.hpp"

namespace kvd::core {

/// Engines that choose their block ids themselves. Once a step each tells where its requests are,
/// and the policies in force say who leaves, who comes in and how many prompt tokens the step may
/// have. No block and no table is involved: the memory of such an engine is in a region, or
/// wherever else it keeps it. Engines are decided for one by one.
///
/// Source: kvd/DESIGN.md "Engines that place their blocks".
///
/// Owner: control thread. Cost: O(n log n) in the requests of the call.
class EnginePlaced : private Part {
 public:
  EnginePlaced(Ground& ground, Needs& needs)
      : Part(ground),
        knowledge_(ground.knowledge),
        drains_(ground.drains),
        needs_(needs),
        placing_(ground.context, ground.lateness) {}

  /// InvalidArgument for a session whose blocks kvd places, and for an id that is named twice.
  void on_schedule(const Command& command, const Schedule& told);

 private:
  /// A call that has been learned (placing.hpp).
  struct Call {
    Session& session;
    const Schedule& told;
    std::span<PlacedRequest* const> requests;  ///< in the order of the call
    // Blocks that running requests will take.
    std::int64_t next = 0;  ///< in the next step
    std::int64_t rest = 0;  ///< after it, until their prompts are computed

    [[nodiscard]] const PlacedRequests& placed() const { return *session.placed; }
    /// How long an iteration takes without prefill, with the requests that run.
    [[nodiscard]] double step_s() const {
      return Knowledge::decode_s(session.costs, placed().running);
    }
  };
  /// A request that has something to compute before its next token.
  struct Queued {
    bool begun = false;
    TimePoint due{0};
    PlacedRequest* request = nullptr;
  };
  void set_goals(Session& session, const Schedule& told);
  [[nodiscard]] ScheduleReply decide(Call& call);
  [[nodiscard]] std::optional<Tokens> admit(const Call& call);
  [[nodiscard]] planner::AdmissionSnapshot admission_snapshot(const Call& call);
  void rotate(const Call& call, ScheduleReply& reply);
  void fill_snapshot(const Call& call);
  void set_budgets(const Call& call);
  void take(const Call& call, const planner::RotationDecision& decision, ScheduleReply& reply);
  static void let_grow(const Call& call, ScheduleReply& reply);

  Knowledge& knowledge_;
  const Drains& drains_;
  Needs& needs_;
  Placing placing_;
  // Scratch for the current call, kept for its memory.
  std::vector<Goal> goals_;  ///< by request
  bool nobody_has_goals_ = false;
  std::vector<Queued> queue_;  ///< what the admission policy is asked about
  planner::RotationSnapshot snapshot_;
  std::vector<PlacedRequest*> index_;  ///< the request behind each entry of the snapshot
};

}  // namespace kvd::core
