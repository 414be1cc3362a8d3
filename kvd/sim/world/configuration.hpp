#pragma once

#include "kvd/core/controller.hpp"
#include "kvd/sim/engine/placing_engine.hpp"
#include "kvd/sim/run/setting.hpp"

/// What a setting means to the Controller.
namespace kvd::sim {

/// Errors: InvalidArgument for a setting that cannot run, saying why.
[[nodiscard]] Status check_setting(const Setting& setting);

/// Pools, quotas and tuning. Precondition: check_setting().
[[nodiscard]] core::Controller::Config controller_config(const Setting& setting);

/// Engines that place their blocks lend each other HBM.
[[nodiscard]] bool shares_hbm(const Setting& setting);

/// Blocks that an engine has which places them itself: of its guarantee, else of an equal part of
/// the pool. Where engines lend each other HBM: what there is beside a chunk of each other one.
[[nodiscard]] PlacingEngine::Room part_of(const Setting& setting, const EngineSetting& engine);

/// Tokens of the engine's model that its domain's HBM holds at most. The workload need not be there
/// yet. Errors: InvalidArgument for engines or memory that cannot run.
[[nodiscard]] Result<Tokens> most_tokens(const Setting& setting, std::size_t engine);

/// Tokens that a request may have, prompt and answer: as many as HBM holds and the model allows.
/// Errors: as most_tokens().
[[nodiscard]] Result<Tokens> context_of(const Setting& setting, std::size_t engine);

/// Records of the workload's requests, of which nothing has become yet.
[[nodiscard]] std::vector<RequestRecord> new_records(const Setting& setting);

/// Prompt tokens of one iteration; 0: any number.
[[nodiscard]] std::int64_t prefill_budget(const Setting& setting, const Profile& profile);

}  // namespace kvd::sim
