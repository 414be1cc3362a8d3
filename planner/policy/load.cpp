#include "planner/policy/load.hpp"

#include <algorithm>
#include <cmath>
#include <string>

namespace kvd::planner {
namespace {

constexpr double kLongest = 9007199254740992.0;  // 2^53: whole numbers are exact up to here

bool not_negative(double value) { return std::isfinite(value) && value >= 0; }

// The largest real n at which a n^2 + b n + c = 0; nothing where there is no root or the sign does
// not end positive. Precondition: a >= 0.
std::optional<double> last_root(double a, double b, double c) {
  if (a == 0) return b > 0 ? std::optional(-c / b) : std::nullopt;
  const double discriminant = b * b - 4 * a * c;
  if (discriminant < 0) return std::nullopt;
  const double root = std::sqrt(discriminant);
  // Both forms are equal; this one avoids cancellation.
  return b > 0 ? -2 * c / (b + root) : (-b + root) / (2 * a);
}

}  // namespace

Status check(const LoadCosts& costs) {
  const auto invalid = [](const char* why) { return make_error(ErrorCode::kInvalidArgument, why); };
  if (costs.tokens < Tokens{1}) return invalid("tokens must be at least 1");
  if (costs.bytes < Bytes{0} || costs.queued < Bytes{0}) {
    return invalid("bytes must not be negative");
  }
  if (!std::isfinite(costs.bandwidth.value) || costs.bandwidth.value <= 0) {
    return invalid("bandwidth must be finite and above 0");
  }
  for (const auto time : {costs.latency, costs.prefill_fixed, costs.prefill_per_token,
                          costs.prefill_per_token2, costs.ahead}) {
    if (!not_negative(time.count())) return invalid("times must be finite and not negative");
  }
  const auto n = static_cast<double>(costs.tokens.value);
  if (!std::isfinite(costs.load(n).count()) || !std::isfinite(costs.prefill(n).count())) {
    return invalid("load or prefill time leaves the range of numbers; check rates and sizes");
  }
  return {};
}

Seconds LoadCosts::load(double n) const {
  const double moved = static_cast<double>(bytes.value) * n / static_cast<double>(tokens.value);
  return latency + Seconds((static_cast<double>(queued.value) + moved) / bandwidth.value);
}

Seconds LoadCosts::prefill(double n) const {
  return prefill_fixed + prefill_per_token * n + prefill_per_token2 * n * n;
}

std::optional<std::int64_t> LoadCosts::crossover() const {
  const double quadratic = prefill_per_token2.count();
  const double per_token = static_cast<double>(bytes.value) / static_cast<double>(tokens.value);
  const double linear = prefill_per_token.count() - per_token / bandwidth.value;
  const double fixed = prefill_fixed.count() - load(0).count();
  const bool wins_at_last = quadratic > 0 || linear > 0 || (linear == 0 && fixed > 0);
  if (!wins_at_last) return std::nullopt;
  const double root = last_root(quadratic, linear, fixed).value_or(0);
  if (root >= kLongest) return std::nullopt;
  double n = std::max(1.0, std::floor(root) + 1);
  // The root may be off by one where it is whole except for rounding.
  for (int i = 0; i < 3 && n > 1 && loading_wins(n - 1); ++i) --n;
  for (int i = 0; i < 3 && !loading_wins(n); ++i) ++n;
  return static_cast<std::int64_t>(n);
}

// A request that waits could not have the tokens computed sooner either.
Seconds MeasuredCrossoverPolicy::patience(const LoadCosts& costs) const {
  return costs.ahead + costs.prefill(static_cast<double>(costs.tokens.value));
}

Tokens MeasuredCrossoverPolicy::decide(const LoadCosts& costs, LoadMemory& memory) const {
  const double load = costs.load(static_cast<double>(costs.tokens.value)).count();
  const double compute = patience(costs).count();
  auto& loaded = memory.loaded_last;
  if (!loaded) {
    loaded = load < compute;
  } else if (*loaded) {
    loaded = !(compute < load * (1 - kMargin));
  } else {
    loaded = load < compute * (1 - kMargin);
  }
  // A load that was a mistake is given up after the time that computing takes, so it costs at most
  // twice that time.
  const double other = *loaded ? compute : std::min(load, 2 * compute);
  const double chosen = *loaded ? load : compute;
  memory.curiosity += std::min(1.0, chosen / std::max(other, 1e-12)) / kExplore;
  const bool explores = memory.curiosity >= 1;
  if (explores) memory.curiosity = 0;
  return *loaded != explores ? costs.tokens : Tokens{0};
}

std::span<const std::string_view> load_policy_names() {
  static constexpr std::string_view kNames[] = {"measured_crossover", "always", "never"};
  return kNames;
}

Result<std::unique_ptr<LoadPolicy>> make_load_policy(std::string_view policy) {
  using Made = std::unique_ptr<LoadPolicy>;
  if (policy == "measured_crossover") return Made(new MeasuredCrossoverPolicy);
  if (policy == "always") return Made(new AlwaysLoadPolicy);
  if (policy == "never") return Made(new NeverLoadPolicy);
  std::string message = "no load policy \"" + std::string(policy) + "\"; available:";
  for (const auto name : load_policy_names()) message += " " + std::string(name);
  return make_error(ErrorCode::kInvalidArgument, std::move(message));
}

}  // namespace kvd::planner
