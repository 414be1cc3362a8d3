#include "kvd/admin/advice/advice.hpp"

#include <algorithm>
#include <optional>
#include <vector>

#include "kvd/admin/json.hpp"
#include "planner/policy/load.hpp"

namespace kvd::admin {
namespace {

/// The least share of the tokens that a tier must have: below it no tier saves as much as it costs.
constexpr double kLeastReuse = 0.05;
/// The least share of the tokens found: below it what comes back is in HBM anyway.
constexpr double kLeastOutside = 0.05;

Json or_null(const std::optional<double>& number) { return number ? Json(*number) : Json(nullptr); }

/// A condition that holds, does not, or is not known yet.
struct Condition {
  const char* name;
  std::optional<double> value;
  double least;
  const char* unit;
  [[nodiscard]] std::optional<bool> holds() const {
    return value ? std::optional(*value >= least) : std::nullopt;
  }
};

Json json_of(const Condition& condition) {
  const auto holds = condition.holds();
  return {{"condition", condition.name},
          {"holds", holds ? Json(*holds) : Json(nullptr)},
          {"value", or_null(condition.value)},
          {"at_least", condition.least},
          {"unit", condition.unit}};
}

/// Whether all hold, one does not, or it is not known.
std::optional<bool> verdict(const std::vector<Condition>& conditions) {
  bool all_known = true;
  for (const Condition& condition : conditions) {
    const auto holds = condition.holds();
    if (holds && !*holds) return false;
    all_known = all_known && holds.has_value();
  }
  return all_known ? std::optional(true) : std::nullopt;
}

struct Source {
  const char* name;
  double bytes_per_s = 0;  ///< 0: not measured
  double latency_s = 0;
};

/// Blocks from disk have to cross the link as well.
std::vector<Source> tiers_of(const core::ControllerStatus& status) {
  const double link = status.devices.empty() ? 0 : status.devices.front().link_rate[0];
  const core::DiskRates& disk = status.disk_rates;
  std::vector<Source> tiers = {{"dram", link, 0}};
  const bool both = link > 0 && disk.bytes_per_s > 0;
  tiers.push_back(
      {"disk", both ? 1 / (1 / link + 1 / disk.bytes_per_s) : 0, both ? disk.latency_s : 0});
  return tiers;
}

/// Sums up all prompts whose content engines have told.
struct Reuse {
  std::optional<double> found;    ///< share of their tokens
  std::optional<double> outside;  ///< share of the tokens found that were not in HBM
  std::optional<double> prompt;   ///< tokens, mean
};

Reuse reuse_of(const core::Counters::Prefixes& prefixes) {
  Reuse reuse;
  const auto found = static_cast<double>(prefixes.found[0] + prefixes.found[1]);
  const auto asked = static_cast<double>(prefixes.asked);
  if (asked > 0) reuse.found = found / asked;
  if (prefixes.prompts > 0) reuse.prompt = asked / static_cast<double>(prefixes.prompts);
  // HBM would not have had these blocks the next time, as it had to give them up.
  if (found > 0) reuse.outside = static_cast<double>(prefixes.found[1]) / found;
  return reuse;
}

Json tier_advice(const Source& tier, const core::EngineStatus& engine, const Reuse& reuse) {
  planner::LoadCosts costs;
  costs.tokens = Tokens(1000);
  costs.bytes = engine.kv.token_bytes * 1000;
  costs.bandwidth = BytesPerSecond{std::max(tier.bytes_per_s, 1.0)};
  costs.latency = planner::Seconds(tier.latency_s);
  costs.prefill_per_token = planner::Seconds(engine.kv.prefill_token_s);
  const bool measured = tier.bytes_per_s > 0 && engine.kv.prefill_token_s > 0;
  std::optional<double> speed, length, from, load_s, prefill_s;
  if (measured) {
    const auto crossover = costs.crossover();
    if (crossover) from = static_cast<double>(*crossover);
    speed = engine.kv.prefill_token_s * tier.bytes_per_s /
            static_cast<double>(engine.kv.token_bytes.value);
  }
  if (measured && reuse.prompt) {
    load_s = costs.load(*reuse.prompt).count();
    prefill_s = costs.prefill(*reuse.prompt).count();
    length = from ? *reuse.prompt / *from : 0;
  }
  const std::vector<Condition> conditions = {
      {"prompts come back", reuse.found, kLeastReuse, "share of prompt tokens found"},
      {"HBM alone does not keep them", reuse.outside, kLeastOutside,
       "share of these found outside of HBM"},
      {"the tier is faster than computing", speed, 1, "times"},
      {"prompts are long enough", length, 1, "times the crossover"}};
  Json list = Json::array();
  for (const Condition& condition : conditions) list.push_back(json_of(condition));
  const auto pays = verdict(conditions);
  return {{"tier", tier.name},
          {"pays", pays ? Json(*pays) : Json(nullptr)},
          {"conditions", std::move(list)},
          {"bytes_per_s", tier.bytes_per_s > 0 ? Json(tier.bytes_per_s) : Json(nullptr)},
          {"latency_s", tier.latency_s},
          {"crossover_tokens", or_null(from)},
          {"load_s", or_null(load_s)},
          {"prefill_s", or_null(prefill_s)}};
}

}  // namespace

std::string advice_document(const core::ControllerStatus& status) {
  const Reuse reuse = reuse_of(status.counters.prefixes);
  Json engines = Json::array();
  for (const core::EngineStatus& engine : status.engines) {
    if (engine.kv.token_bytes == Bytes(0)) continue;
    Json tiers = Json::array();
    for (const Source& tier : tiers_of(status)) tiers.push_back(tier_advice(tier, engine, reuse));
    const double prefill = engine.kv.prefill_token_s;
    engines.push_back({{"engine", engine.id.value},
                       {"name", engine.name},
                       {"token_bytes", engine.kv.token_bytes.value},
                       {"prefill_token_s", prefill > 0 ? Json(prefill) : Json(nullptr)},
                       {"tiers", std::move(tiers)}});
  }
  return to_text({{"prompts", status.counters.prefixes.prompts},
                  {"prompt_tokens", status.counters.prefixes.asked},
                  {"mean_prompt_tokens", or_null(reuse.prompt)},
                  {"load_policy", status.tuning.load.policy},
                  {"engines", std::move(engines)}});
}

}  // namespace kvd::admin
