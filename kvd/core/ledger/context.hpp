#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/core/door/config.hpp"
#include "kvd/core/door/effects.hpp"
#include "kvd/core/door/events.hpp"
#include "kvd/core/door/status.hpp"
#include "kvd/core/door/tuning.hpp"
#include "kvd/store/memory/orders.hpp"
#include "planner/policy/admission/admission.hpp"
#include "planner/policy/load.hpp"
#include "planner/policy/placement/placement.hpp"
#include "planner/policy/rotation.hpp"

namespace kvd::core {

/// The current event as every part sees it: its time, the tuning, and where effects go.
///
/// Owner: control thread.
struct Context {
  explicit Context(Config configuration);

  Config config;
  Tuning tuning;
  std::unique_ptr<planner::RotationPolicy> rotation;
  std::unique_ptr<planner::AdmissionPolicy> admission;
  /// It is asked for its traits only; the shell decides with a copy of its own.
  std::unique_ptr<planner::PlacementPolicy> placement;
  std::unique_ptr<planner::LoadPolicy> load;
  Counters counters;
  store::Orders orders;  ///< what the store wants done with memory
  TimePoint now{0};
  std::vector<Effect>* effects = nullptr;

  template <class E>
  void emit(E effect) {
    pass_on_orders();
    effects->emplace_back(std::move(effect));
  }
  /// Passes on first what the store has ordered meanwhile.
  void pass_on_orders();
  void note(Note::Level level, EngineId engine, std::string text);
  void reply(const Command& command, decltype(Reply::body) body);
  void refuse(const Command& command, ErrorCode code, std::string message);
  [[nodiscard]] planner::RotationConfig rotation_config() const;
  /// Takes the new tuning, and makes the policies anew where it names others.
  void retune(const Tuning& wanted);
};

}  // namespace kvd::core
