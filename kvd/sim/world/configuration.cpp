#include "kvd/sim/world/configuration.hpp"

#include <algorithm>
#include <cmath>

#include "planner/baselines/all_policies.hpp"
#include "planner/baselines/guarded.hpp"

namespace kvd::sim {
namespace {

/// A block has a slot for each group of layers.
Bytes block_bytes(const core::ModelClass& shape) {
  return shape.slot_bytes() * std::int64_t{shape.groups()};
}

/// Chooses slabs so that next to nothing of the memory is lost to rounding, and guarantees by whole
/// slabs are fine enough.
pool::TierPool::Config tier_config(Tier tier, Bytes memory, Bytes slot) {
  const std::int64_t slots = memory / slot;
  const auto root = static_cast<std::int64_t>(std::sqrt(static_cast<double>(slots)));
  const std::int64_t fewest = (slots + SlotId::kMaxSlotsPerSlab - 1) / SlotId::kMaxSlotsPerSlab;
  const std::int64_t slabs = std::max({std::int64_t{1}, std::min<std::int64_t>(64, root), fewest});
  return {tier, slot * (slots / slabs), static_cast<std::uint32_t>(slabs)};
}

/// HBM comes and goes by slabs, so a slab has whole blocks of all layers.
pool::TierPool::Config hbm_config(const Setting& setting) {
  Bytes unit;
  for (const EngineSetting& engine : setting.engines) {
    const auto& shape = engine.profile.shape;
    unit = std::max(unit, shares_hbm(setting) ? block_bytes(shape) : shape.slot_bytes());
  }
  return tier_config(Tier::kHbm, setting.hbm.value_or(setting.engines.front().profile.hbm), unit);
}

/// Rounds down to whole slabs: equal parts of the pool must fit it.
void guarantee(Bytes bytes, Bytes slab, DomainId domain, pool::Quotas& quotas) {
  if (bytes <= Bytes(0)) return;
  quotas[domain].guarantee = slab * std::max<std::int64_t>(1, bytes / slab);
}

Status check_workload(const Setting& setting) {
  const auto invalid = [](std::size_t i, const std::string& what) {
    return make_error(ErrorCode::kInvalidArgument,
                      "request " + std::to_string(i) + " of the workload " + what);
  };
  if (setting.workload.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the workload has no requests: raise its rate or duration");
  }
  Seconds before{0};
  for (std::size_t i = 0; i < setting.workload.size(); ++i) {
    const Arrival& a = setting.workload[i];
    if (a.engine >= setting.engines.size()) {
      return invalid(i, "is for engine " + std::to_string(a.engine) + ", of which there is none");
    }
    if (!(a.time >= before)) return invalid(i, "does not come in order of time");
    if (a.prompt < Tokens(1) || a.output < Tokens(1)) return invalid(i, "has no tokens");
    if (a.predicted && *a.predicted < Tokens(1)) return invalid(i, "is predicted to be empty");
    if (a.announced && *a.announced < a.output) return invalid(i, "announces less than it makes");
    before = a.time;
  }
  return {};
}

core::Tuning tuning_of(const Setting& setting) {
  core::Tuning tuning = setting.policy.tuning;
  tuning.slo["default"] = setting.slo;
  if (setting.b_xfer) tuning.rotation.b_xfer = setting.b_xfer;
  tuning.rotation.alpha = setting.alpha.value_or(tuning.rotation.alpha);
  tuning.rotation.beta_b = setting.beta_b.value_or(tuning.rotation.beta_b);
  tuning.rotation.beta_f = setting.beta_f.value_or(tuning.rotation.beta_f);
  return tuning;
}

Status check_engines(const Setting& setting) {
  if (setting.engines.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "a run needs an engine: name a profile");
  }
  for (const EngineSetting& engine : setting.engines) {
    Profile profile = engine.profile;
    profile.hbm = setting.hbm.value_or(setting.engines.front().profile.hbm);
    profile.dram = setting.dram.value_or(setting.engines.front().profile.dram);
    KVD_TRY(check(profile));
  }
  return {};
}

Status check_chunks(const Setting& setting) {
  constexpr std::int64_t kLeastChunks = 4;
  if (!shares_hbm(setting)) return {};
  const pool::TierPool::Config hbm = hbm_config(setting);
  if (hbm.slabs >= kLeastChunks + std::ssize(setting.engines) - 1) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "HBM comes and goes by " + std::to_string(hbm.slabs) + " parts of " +
                        std::to_string(hbm.slab_bytes.value) +
                        " bytes, too few for engines to share: raise --hbm, or give each a part of "
                        "its own with --partition");
}

/// An engine that places its blocks asks kvd which requests to serve, and nothing else.
Status check_policy(const Setting& setting) {
  const NamedPolicy& policy = setting.policy;
  const auto refuse = [](const std::string& message) {
    return make_error(ErrorCode::kInvalidArgument, message);
  };
  if (!setting.engines_place) {
    if (!policy.stock) return {};
    return refuse(policy.name +
                  " is the own rule of engines that place their blocks: add --engines-place");
  }
  const bool unified = planner::without_guards(policy.name) == "unified";
  const bool asked = unified || policy.tuning.placement.policy == "none";
  if (!asked || policy.oracle) {
    return refuse(
        "engines that place their blocks ask for rotation and admission policies, not for " +
        policy.name);
  }
  if (setting.prefixes) return refuse("engines that place their blocks tell no prefixes");
  if (setting.shortest_first)
    return refuse("engines that place their blocks seat the first that came");
  return {};
}

}  // namespace

Status check_setting(const Setting& setting) {
  KVD_TRY(check_engines(setting));
  KVD_TRY(check_chunks(setting));
  KVD_TRY(check_policy(setting));
  constexpr std::int64_t kMostPrefill = 1'000'000'000;
  const std::int64_t prefill = setting.prefill_tokens.value_or(1);
  if (prefill < 1 || prefill > kMostPrefill) {
    return make_error(ErrorCode::kInvalidArgument, "the prefill budget must be from 1 to " +
                                                       std::to_string(kMostPrefill) + " tokens");
  }
  return check_workload(setting);
}

core::Controller::Config controller_config(const Setting& setting) {
  core::Controller::Config config;
  Bytes slot;
  std::uint32_t most = 0;
  for (const EngineSetting& engine : setting.engines) {
    slot = std::max(slot, engine.profile.shape.slot_bytes());
    most = std::max(most, engine.profile.limits.max_num_seqs);
  }
  const Profile& machine = setting.engines.front().profile;
  config.hbm = {hbm_config(setting)};
  config.dram = tier_config(Tier::kDram, setting.dram.value_or(machine.dram), slot);
  for (const EngineSetting& engine : setting.engines) {
    const DomainId domain(engine.domain);
    guarantee(engine.guarantee, config.hbm.front().slab_bytes, domain, config.hbm_quotas);
    guarantee(engine.dram_guarantee, config.dram.slab_bytes, domain, config.dram_quotas);
  }
  config.tuning = tuning_of(setting);
  config.step_timeout = Nanoseconds::max();  // a long prefill is no silence here
  // An engine submits the next request before the step that reports the end of the last one.
  config.max_requests_per_engine = 2 * most;
  config.max_requests_per_domain = UINT32_MAX;
  config.max_given_up = UINT32_MAX;  // nothing else needs the thread here
  config.publish_tables = false;
  config.policies = &planner::all_policies();
  if (setting.disk && setting.prefixes) {
    // The simulator has nobody to keep a secret from, but each domain needs names of its own.
    config.disk.name = [](const std::string& domain, const Fingerprint&, const Digest& block) {
      Digest name = block;
      for (std::size_t i = 0; i < domain.size(); ++i) {
        name.bytes[i % name.bytes.size()] ^= static_cast<std::uint8_t>(domain[i]);
      }
      return name;
    };
    config.disk.admission.least = setting.disk->touches;
  }
  config.validate_each_event = setting.check;
  return config;
}

bool shares_hbm(const Setting& setting) {
  return setting.engines_place && !setting.policy.stock && setting.engines.size() > 1 &&
         std::all_of(setting.engines.begin(), setting.engines.end(),
                     [](const EngineSetting& engine) { return engine.elastic; });
}

PlacingEngine::Room part_of(const Setting& setting, const EngineSetting& engine) {
  const Profile& machine = setting.engines.front().profile;
  const auto blocks = [&](Bytes all, Bytes guarantee) {
    const Bytes part =
        guarantee > Bytes(0) ? guarantee : Bytes(all.value / std::ssize(setting.engines));
    return part / block_bytes(engine.profile.shape);
  };
  PlacingEngine::Room room{blocks(setting.hbm.value_or(machine.hbm), engine.guarantee),
                           blocks(setting.dram.value_or(machine.dram), engine.dram_guarantee)};
  if (!shares_hbm(setting)) return room;
  const pool::TierPool::Config hbm = hbm_config(setting);
  room.chunk = hbm.slab_bytes / block_bytes(engine.profile.shape);
  room.hbm = room.chunk * (hbm.slabs - std::ssize(setting.engines) + 1);
  return room;
}

Result<Tokens> most_tokens(const Setting& setting, std::size_t engine) {
  KVD_TRY(check_engines(setting));
  if (setting.engines_place) {
    const EngineSetting& placing = setting.engines[engine];
    return Tokens(part_of(setting, placing).hbm * placing.profile.shape.block_tokens);
  }
  const core::Controller::Config config = controller_config(setting);
  const pool::TierPool::Config& hbm = config.hbm.front();
  Bytes others;
  for (const auto& [domain, quota] : config.hbm_quotas) {
    if (domain != DomainId(setting.engines[engine].domain)) others += quota.guarantee;
  }
  const auto& shape = setting.engines[engine].profile.shape;
  const std::int64_t slabs = hbm.slabs - others / hbm.slab_bytes;
  const std::int64_t slots = slabs * (hbm.slab_bytes / shape.slot_bytes());
  return Tokens(slots / shape.groups() * shape.block_tokens);
}

Result<Tokens> context_of(const Setting& setting, std::size_t engine) {
  KVD_ASSIGN_OR_RETURN(const Tokens memory, most_tokens(setting, engine));
  const std::int64_t model = setting.engines[engine].profile.limits.max_model_len;
  return model == 0 ? memory : std::min(memory, Tokens(model));
}

std::vector<RequestRecord> new_records(const Setting& setting) {
  /// Longer answers than this get room only as they are made.
  constexpr std::size_t kReserve = 4096;
  std::vector<RequestRecord> records;
  for (const Arrival& arrival : setting.workload) {
    RequestRecord& record = records.emplace_back();
    record.engine = arrival.engine;
    record.prompt = arrival.prompt;
    record.output = arrival.output;
    record.arrival = arrival.time;
    record.ttft_slo = arrival.ttft_slo.value_or(Seconds(setting.slo.ttft));
    record.tbt_slo = arrival.tbt_slo.value_or(Seconds(setting.slo.tbt));
    record.tpot_slo = arrival.tpot_slo.value_or(Seconds(setting.slo.tpot));
    record.tokens.reserve(std::min(arrival.output.size(), kReserve));
  }
  return records;
}

std::int64_t prefill_budget(const Setting& setting, const Profile& profile) {
  return setting.prefill_tokens.value_or(profile.limits.max_batched_tokens);
}

}  // namespace kvd::sim
