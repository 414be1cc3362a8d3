#include "planner/policy/admission/prefill_costs.hpp"

#include <algorithm>
#include <cmath>

namespace kvd::planner {
namespace {

Error invalid(const char* why) { return make_error(ErrorCode::kInvalidArgument, why); }

bool positive(double value) { return std::isfinite(value) && value > 0; }
bool not_negative(double value) { return std::isfinite(value) && value >= 0; }

}  // namespace

Status check(const PrefillCosts& costs) {
  if (costs.layers < 1 || costs.layers > 1024) return invalid("layers must be within 1..1024");
  if (!positive(costs.flops_per_s)) return invalid("flops_per_s must be finite and above 0");
  if (!positive(costs.link.value)) return invalid("link_bytes_per_s must be finite and above 0");
  if (!(costs.link_busy >= 0 && costs.link_busy < 1)) {
    return invalid("link_busy must be at least 0 and below 1");
  }
  if (!not_negative(costs.alpha)) return invalid("alpha must be finite and not negative");
  if (!not_negative(costs.beta)) return invalid("beta must be finite and not negative");
  if (!not_negative(costs.params)) return invalid("params must be finite and not negative");
  if (!not_negative(costs.hidden)) return invalid("hidden must be finite and not negative");
  if (costs.kv_heads < 1 || costs.head_dim < 1 || costs.precision_bytes < 1) {
    return invalid("kv_heads, head_dim and precision_bytes must be at least 1");
  }
  return {};
}

Seconds PrefillCosts::prefill(Tokens tokens) const {
  const auto n = static_cast<double>(tokens.value);
  return Seconds(alpha * n * (2 * params + 2 * n * hidden) / flops_per_s);
}

Seconds PrefillCosts::prefill_part(Tokens done, Tokens tokens) const {
  return prefill(done + tokens) - prefill(done);
}

Tokens PrefillCosts::tokens_within(Seconds time, Tokens done, Tokens most) const {
  if (most <= Tokens(0)) return Tokens(0);
  if (prefill_part(done, most) <= time) return most;
  Tokens within{0};
  Tokens beyond = most;
  while (beyond - within > Tokens(1)) {
    const Tokens middle = within + Tokens((beyond - within).value / 2);
    (prefill_part(done, middle) <= time ? within : beyond) = middle;
  }
  return within;
}

Seconds PrefillCosts::offload(Tokens tokens, std::int32_t retained) const {
  const double per_layer = static_cast<double>(tokens.value) * 2 * head_dim *
                           static_cast<double>(kv_heads) * precision_bytes;
  return Seconds(beta * per_layer * (layers - retained) / (link.value * (1 - link_busy)));
}

std::int32_t PrefillCosts::retained_layers(Tokens tokens) const {
  const Seconds hidden_behind = prefill(tokens);
  const double per_layer = offload(tokens, layers - 1).count();
  if (per_layer <= 0) return 0;
  const double estimate = std::ceil(layers - hidden_behind.count() / per_layer);
  auto retained = static_cast<std::int32_t>(std::clamp(estimate, 0.0, double(layers)));
  // The estimate may be off by one where it is whole except for rounding.
  while (retained > 0 && offload(tokens, retained - 1) <= hidden_behind) --retained;
  while (retained < layers && offload(tokens, retained) > hidden_behind) ++retained;
  return retained;
}

}  // namespace kvd::planner
