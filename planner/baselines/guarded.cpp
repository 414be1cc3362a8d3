#include "planner/baselines/guarded.hpp"

namespace kvd::planner {
namespace {

constexpr std::string_view kGuards = "+guards";

}  // namespace

std::string with_guards(std::string_view policy) {
  return std::string(without_guards(policy)) + std::string(kGuards);
}

std::string_view without_guards(std::string_view policy) {
  if (policy.ends_with(kGuards)) policy.remove_suffix(kGuards.size());
  return policy;
}

void keep_guard(const AdmissionSnapshot& snapshot, AdmissionDecision& decision) {
  StepGuardCount guard(snapshot);
  std::size_t admitted = 0;
  while (admitted < decision.admitted && guard.admit(snapshot.queue[admitted])) ++admitted;
  decision.admitted = admitted;
  decision.chunk = guard.chunk(admitted);
}

}  // namespace kvd::planner
