#pragma once

#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "planner/model/seconds.hpp"

namespace kvd::planner {

/// What a cached prefix costs to load from its tier, and what it would cost to compute again.
/// Source: the offloading-conditions article; the quadratic prefill term is ours.
struct LoadCosts {
  Tokens tokens;
  Bytes bytes;
  /// The rate of the tier that holds the prefix; TierRates measures both.
  BytesPerSecond bandwidth;
  Seconds latency{0};
  Seconds prefill_fixed{0};
  Seconds prefill_per_token{0};
  Seconds prefill_per_token2{0};
  Bytes queued{0};  ///< bytes that the tier moves before these
  /// Time for which the engine computes other prompts first, whatever is decided.
  Seconds ahead{0};

  [[nodiscard]] Seconds load(double n) const;
  [[nodiscard]] Seconds prefill(double n) const;
  /// Loading is strictly faster.
  [[nodiscard]] bool loading_wins(double n) const { return load(n) < prefill(n); }
  /// The least length from which loading wins at every length; nothing where there is none (or none
  /// below 2^53 tokens).
  [[nodiscard]] std::optional<std::int64_t> crossover() const;
};

/// Errors: InvalidArgument for values that are not finite and in range.
[[nodiscard]] Status check(const LoadCosts& costs);

/// What the caller keeps for one tier between decisions.
struct LoadMemory {
  std::optional<bool> loaded_last;  ///< without explorations
  double curiosity = 0;             ///< at 1 the other choice is tried once
};

/// Decides how many leading tokens of a cached prefix are loaded; the rest is computed.
/// Owner: immutable.
class LoadPolicy {
 public:
  virtual ~LoadPolicy() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;
  /// `memory` is the tier's and is updated. Precondition: check() of the costs.
  [[nodiscard]] virtual Tokens decide(const LoadCosts& costs, LoadMemory& memory) const = 0;
  /// How long a load is waited for before the tokens are computed after all.
  [[nodiscard]] virtual Seconds patience(const LoadCosts& costs) const = 0;
};

/// Loads where measured rates say that the blocks come sooner than the engine could have computed
/// them, after what it computes first anyway. Prefill grows at least linearly, so loading a part of
/// the prefix never beats both loading none and loading all of it. The policy changes its answer
/// for a tier only when the other is faster by kMargin, so that rates near the crossover do not
/// make it flip.
///
/// One decision in kExplore takes the other choice, so that a tier that has become faster is
/// noticed. The more that costs the rarer it is, so that all explorations together cost 1 /
/// kExplore of the time.
/// Source: kvd.
class MeasuredCrossoverPolicy final : public LoadPolicy {
 public:
  static constexpr double kMargin = 0.1;
  static constexpr double kExplore = 100;
  [[nodiscard]] std::string_view name() const override { return "measured_crossover"; }
  [[nodiscard]] Tokens decide(const LoadCosts& costs, LoadMemory& memory) const override;
  [[nodiscard]] Seconds patience(const LoadCosts& costs) const override;
};

class AlwaysLoadPolicy final : public LoadPolicy {
 public:
  [[nodiscard]] std::string_view name() const override { return "always"; }
  [[nodiscard]] Tokens decide(const LoadCosts& costs, LoadMemory&) const override {
    return costs.tokens;
  }
  [[nodiscard]] Seconds patience(const LoadCosts&) const override {
    return Seconds(std::numeric_limits<double>::infinity());
  }
};

class NeverLoadPolicy final : public LoadPolicy {
 public:
  [[nodiscard]] std::string_view name() const override { return "never"; }
  [[nodiscard]] Tokens decide(const LoadCosts&, LoadMemory&) const override { return Tokens{0}; }
  [[nodiscard]] Seconds patience(const LoadCosts&) const override { return Seconds(0); }
};

/// The load policies that exist, measured_crossover first.
[[nodiscard]] std::span<const std::string_view> load_policy_names();
/// Errors: InvalidArgument naming those that exist.
[[nodiscard]] Result<std::unique_ptr<LoadPolicy>> make_load_policy(std::string_view policy);

}  // namespace kvd::planner
