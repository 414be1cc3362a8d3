#include "tests/unit/planner/policy/rotation_contract.hpp"

namespace kvd::planner::testing {

INSTANTIATE_TEST_SUITE_P(Built, RotationContract,
                         ::testing::ValuesIn(policy_names(Decision::kRotation).begin(),
                                             policy_names(Decision::kRotation).end()),
                         [](const auto& of) { return std::string(of.param); });

}  // namespace kvd::planner::testing
