#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "kvd/core/ground.hpp"
#include "kvd/core/needs.hpp"
#include "kvd/core/placing.hpp"
#include "planner/policy/admission.hpp"
#include "planner/policy/rotation.hpp"

namespace kvd::core {

/// Engines that pick their block ids themselves: once a step each tells where its requests are, and
/// the policies in force say who leaves, who comes in and how many prompt tokens the step may have.
/// No block and no table is involved: their memory is a region's, or wherever they keep it. Engines
/// are decided for one by one.
///
/// Source: kvd/DESIGN.md "Engines that place their blocks".
///
/// Owner: control thread. Cost: O(n log n) in the requests of the call.
class EnginePlaced {
 public:
  EnginePlaced(Ground& ground, Needs& needs)
      : context_(ground.context),
        store_(ground.store),
        requests_(ground.requests),
        knowledge_(ground.knowledge),
        lateness_(ground.lateness),
        drains_(ground.drains),
        needs_(needs) {}

  /// InvalidArgument for a session whose blocks kvd places, and for an id that is named twice.
  void on_schedule(const Command& command, const Schedule& told);
  /// What they say of requests of the last call, until those end.
  void set_gaps(const Session& session, const SetGaps& named);
  /// What is known of the engine; null: it has not asked yet.
  [[nodiscard]] const Placing* find(EngineId engine) const;
  /// At every tick: counts goals that have passed, and drops what is known of sessions that have
  /// ended.
  void watch();

 private:
  /// What those who run will take.
  struct Growth {
    std::int64_t next = 0;  ///< blocks, in the next step
    std::int64_t rest = 0;  ///< after it, until their prompts are computed
  };
  /// What the admission policy allows.
  struct Allowed {
    std::optional<Tokens> chunk;  ///< prompt tokens of the step
    std::vector<bool> held_back;  ///< by request
  };
  void set_goals(Session& session, const Schedule& told, const Placing& placing);
  [[nodiscard]] ScheduleReply decide(const Session& session, const Schedule& told,
                                     Placing& placing);
  [[nodiscard]] Allowed admit(const Session& session, const Schedule& told, const Placing& placing);
  [[nodiscard]] planner::AdmissionSnapshot admission_snapshot(const Session& session,
                                                              const Schedule& told,
                                                              const Placing& placing);
  Nanoseconds add_decoding(const Session& session, const Schedule& told, const Placing& placing,
                           planner::AdmissionSnapshot& snapshot) const;
  Nanoseconds add_queue(const Session& session, const Schedule& told, const Placing& placing,
                        planner::AdmissionSnapshot& snapshot);
  void fill_snapshot(const Session& session, const Schedule& told, const Placing& placing,
                     const Allowed& allowed);
  void set_budgets(const Session& session, const Schedule& told, const Placing& placing);
  void take(const Schedule& told, const planner::RotationDecision& decision, ScheduleReply& reply);
  void let_grow(const Schedule& told, ScheduleReply& reply);

  Context& context_;
  store::Store& store_;
  Requests& requests_;
  Knowledge& knowledge_;
  Lateness& lateness_;
  const Drains& drains_;
  Needs& needs_;
  std::map<EngineId, Placing> engines_;
  // These are scratch for the call in hand, kept for their memory.
  std::vector<Slo> goals_;             ///< by request
  std::vector<std::uint8_t> classes_;  ///< likewise: places in Totals::services
  std::vector<WaitReason> waits_for_;  ///< likewise
  Growth growth_;
  planner::RotationSnapshot snapshot_;
  std::vector<std::uint32_t> index_;  ///< the request behind each entry of the snapshot
  std::vector<std::uint32_t> queue_;  ///< the same of the admission policy's queue
  std::vector<TimePoint> due_;        ///< by request: when the queue's are due
  std::vector<bool> leaves_;          ///< by request
};

}  // namespace kvd::core
