#include "planner/policy/load.hpp"
#include "planner/tool/decisions.hpp"

namespace kvd::planner {
namespace {

Result<LoadCosts> read_load(const Json& json) {
  Fields fields(json, "");
  LoadCosts costs;
  costs.tokens = Tokens(fields.whole("tokens"));
  costs.bytes = Bytes(fields.whole("bytes"));
  Fields tier(fields.raw("tier"), "tier");
  costs.bandwidth = BytesPerSecond{tier.positive("bandwidth_bytes_per_s")};
  costs.latency = Seconds(tier.not_negative("latency_s", 0.0));
  fields.merge(tier.status());
  Fields prefill(fields.raw("prefill"), "prefill");
  costs.prefill_fixed = Seconds(prefill.not_negative("fixed_s", 0.0));
  costs.prefill_per_token = Seconds(prefill.not_negative("per_token_s", 0.0));
  costs.prefill_per_token2 = Seconds(prefill.not_negative("per_token2_s", 0.0));
  fields.merge(prefill.status());
  KVD_TRY(fields.status());
  KVD_TRY(check(costs));
  return costs;
}

}  // namespace

Result<OrderedJson> plan_load(const Json& snapshot) {
  KVD_ASSIGN_OR_RETURN(const auto costs, read_load(snapshot));
  const auto n = static_cast<double>(costs.tokens.value);
  const bool load = costs.loading_wins(n);
  OrderedJson crossover = nullptr;
  if (const auto tokens = costs.crossover()) crossover = *tokens;
  return OrderedJson{{"decision", load ? "load" : "recompute"},
                     {"load_tokens", load ? costs.tokens.value : 0},
                     {"load_s", costs.load(n).count()},
                     {"prefill_s", costs.prefill(n).count()},
                     {"crossover_tokens", std::move(crossover)}};
}

}  // namespace kvd::planner
