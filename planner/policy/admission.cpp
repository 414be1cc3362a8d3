#include "planner/policy/admission.hpp"

#include <algorithm>
#include <cmath>

namespace kvd::planner {
namespace {

Error invalid(const char* why) { return make_error(ErrorCode::kInvalidArgument, why); }

bool positive(double value) { return std::isfinite(value) && value > 0; }
bool not_negative(double value) { return std::isfinite(value) && value >= 0; }

Status check(const PrefillCosts& costs) {
  if (costs.layers < 1 || costs.layers > 1024) return invalid("layers must be within 1..1024");
  if (!positive(costs.flops_per_s)) return invalid("flops_per_s must be finite and above 0");
  if (!positive(costs.link.value)) return invalid("link_bytes_per_s must be finite and above 0");
  if (!not_negative(costs.alpha)) return invalid("alpha must be finite and not negative");
  if (!not_negative(costs.beta)) return invalid("beta must be finite and not negative");
  if (!not_negative(costs.params)) return invalid("params must be finite and not negative");
  if (!not_negative(costs.hidden)) return invalid("hidden must be finite and not negative");
  if (costs.kv_heads < 1 || costs.head_dim < 1 || costs.precision_bytes < 1) {
    return invalid("kv_heads, head_dim and precision_bytes must be at least 1");
  }
  return {};
}

Status check(const AdmissionSnapshot& snapshot) {
  KVD_TRY(check(snapshot.costs));
  for (const auto& request : snapshot.decoding) {
    if (!not_negative(request.tpot_slo.count()) || !not_negative(request.t_past.count()) ||
        !not_negative(request.tpot.count())) {
      return invalid("times of a decoding request must be finite and not negative");
    }
    if (request.n_past < 0) return invalid("n_past must not be negative");
    if (request.n_future < 1) return invalid("n_future must be at least 1");
  }
  for (const auto tokens : snapshot.queue) {
    if (tokens < Tokens{1}) return invalid("tokens of a queued request must be at least 1");
    if (!std::isfinite(snapshot.costs.prefill(tokens).count()) ||
        !std::isfinite(snapshot.costs.offload(tokens, 0).count())) {
      return invalid("prefill or offload time leaves the range of numbers; check rates and sizes");
    }
  }
  return {};
}

}  // namespace

Seconds PrefillCosts::prefill(Tokens tokens) const {
  const auto n = static_cast<double>(tokens.value);
  return Seconds(alpha * n * (2 * params + 2 * n * hidden) / flops_per_s);
}

Seconds PrefillCosts::offload(Tokens tokens, std::int32_t retained) const {
  const double per_layer = static_cast<double>(tokens.value) * 2 * head_dim *
                           static_cast<double>(kv_heads) * precision_bytes;
  return Seconds(beta * per_layer * (layers - retained) / link.value);
}

std::int32_t PrefillCosts::retained_layers(Tokens tokens) const {
  const Seconds hidden_behind = prefill(tokens);
  const double per_layer = offload(tokens, layers - 1).count();
  if (per_layer <= 0) return 0;
  const double estimate = std::ceil(layers - hidden_behind.count() / per_layer);
  auto retained = static_cast<std::int32_t>(std::clamp(estimate, 0.0, double(layers)));
  // The estimate may be one off where it is whole but for rounding.
  while (retained > 0 && offload(tokens, retained - 1) <= hidden_behind) --retained;
  while (retained < layers && offload(tokens, retained) > hidden_behind) ++retained;
  return retained;
}

Seconds DecodingRequest::allowance() const {
  const Seconds due = tpot_slo * static_cast<double>(n_past + n_future);
  return due - (t_past + tpot * static_cast<double>(n_future));
}

std::optional<Seconds> LayerKvPolicy::least_allowance(const AdmissionSnapshot& snapshot) const {
  std::optional<Seconds> least;
  for (const auto& request : snapshot.decoding) {
    const Seconds allowance = request.allowance();
    if (hopeless_ == Hopeless::kLeftOut && allowance < Seconds{0}) continue;
    least = least ? std::min(*least, allowance) : allowance;
  }
  return least;
}

Result<AdmissionDecision> LayerKvPolicy::decide(const AdmissionSnapshot& snapshot) const {
  KVD_TRY(check(snapshot));
  AdmissionDecision decision;
  decision.allow_prefill = least_allowance(snapshot);
  Seconds sum{0};
  bool room = true;
  for (const auto tokens : snapshot.queue) {
    decision.prefill.push_back(snapshot.costs.prefill(tokens));
    decision.retained_layers.push_back(snapshot.costs.retained_layers(tokens));
    decision.offload.push_back(snapshot.costs.offload(tokens, decision.retained_layers.back()));
    sum += decision.prefill.back();
    room = room && (!decision.allow_prefill || sum < *decision.allow_prefill);
    if (room) ++decision.admitted;
  }
  return decision;
}

Result<AdmissionDecision> AdmitAllPolicy::decide(const AdmissionSnapshot& snapshot) const {
  KVD_TRY(check(snapshot));
  AdmissionDecision decision;
  decision.admitted = snapshot.queue.size();
  for (const auto tokens : snapshot.queue) {
    decision.prefill.push_back(snapshot.costs.prefill(tokens));
    decision.retained_layers.push_back(snapshot.costs.layers);
    decision.offload.emplace_back(0);
  }
  return decision;
}

}  // namespace kvd::planner
