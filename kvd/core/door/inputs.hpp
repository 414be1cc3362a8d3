#pragma once

#include <string>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "planner/policy/admission/admission.hpp"
#include "planner/policy/placement/placement.hpp"
#include "planner/policy/rotation.hpp"

/// What the Controller asks its policies, so that a decision can be repeated elsewhere (kvd-plan).
namespace kvd::core {

/// The question to the rotation policy; there is one for each device that a domain has engines on.
struct RotationInput {
  std::string domain;
  DeviceId device;
  planner::Seconds now{0};
  planner::RotationSnapshot snapshot;
  planner::RotationConfig config;
  std::vector<RequestKey> requests;  ///< the request behind each entry of the snapshot
};

/// The question to the admission policy; there is one for each level 3 engine.
struct AdmissionInput {
  planner::AdmissionSnapshot snapshot;
  std::vector<RequestKey> queue;
  std::vector<RequestKey> decoding;
};

/// How many nodes `place` searches. Only nodes limit it, so that the answer follows from the
/// snapshot.
inline constexpr std::int64_t kPlaceNodes = 40;

/// Which layers stay; there is one question for each level 3 engine with running requests.
struct PlacementInput {
  planner::PlacementSnapshot snapshot;
  std::vector<RequestKey> requests;
};

}  // namespace kvd::core
