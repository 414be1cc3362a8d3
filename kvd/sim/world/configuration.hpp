#pragma once

#include "kvd/core/controller.hpp"
#include "kvd/sim/run/setting.hpp"

/// What a setting means to the Controller.
namespace kvd::sim {

/// Errors: InvalidArgument for a setting that cannot run, saying why.
[[nodiscard]] Status check_setting(const Setting& setting);

/// Pools, quotas and tuning. Precondition: check_setting().
[[nodiscard]] core::Controller::Config controller_config(const Setting& setting);

/// Prompt tokens of one iteration; 0: any number.
[[nodiscard]] std::int64_t prefill_budget(const Setting& setting, const Profile& profile);

}  // namespace kvd::sim
