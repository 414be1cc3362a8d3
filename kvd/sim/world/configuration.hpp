#pragma once

#include "kvd/core/controller.hpp"
#include "kvd/sim/engine/placing_engine.hpp"
#include "kvd/sim/run/setting.hpp"

/// Translates a setting for the Controller.
namespace kvd::sim {

/// Errors: InvalidArgument for a setting that cannot run, with the reason.
[[nodiscard]] Status check_setting(const Setting& setting);

/// Pools, quotas and tuning. Precondition: check_setting().
[[nodiscard]] core::Controller::Config controller_config(const Setting& setting);

/// Engines that place their blocks lend each other HBM.
[[nodiscard]] bool shares_hbm(const Setting& setting);

/// Blocks of an engine that places them itself: those of its guarantee, else of an equal part of
/// the pool. Where engines lend each other HBM, it is all there is except a chunk for each other
/// engine.
[[nodiscard]] PlacingEngine::Room part_of(const Setting& setting, const EngineSetting& engine);

/// The most tokens of the engine's model that its domain's HBM holds. The workload need not be
/// there yet. Errors: InvalidArgument for engines or memory that cannot run.
[[nodiscard]] Result<Tokens> most_tokens(const Setting& setting, std::size_t engine);

/// The most tokens of a request, prompt and answer together: as many as HBM holds and the model
/// allows. Errors: those of most_tokens().
[[nodiscard]] Result<Tokens> context_of(const Setting& setting, std::size_t engine);

/// Records for the workload's requests, as yet empty.
[[nodiscard]] std::vector<RequestRecord> new_records(const Setting& setting);

/// Prompt tokens of one iteration; 0: any number.
[[nodiscard]] std::int64_t prefill_budget(const Setting& setting, const Profile& profile);

}  // namespace kvd::sim
