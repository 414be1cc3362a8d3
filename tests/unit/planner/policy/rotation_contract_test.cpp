#include "tests/unit/planner/policy/rotation_contract.hpp"

namespace kvd::planner::testing {

INSTANTIATE_TEST_SUITE_P(Built, RotationContract,
                         ::testing::ValuesIn(rotation_policy_names().begin(),
                                             rotation_policy_names().end()),
                         [](const auto& of) { return std::string(of.param); });

}  // namespace kvd::planner::testing
