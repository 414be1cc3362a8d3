#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "planner/model/seconds.hpp"

namespace kvd::planner {

/// What a cached prefix costs to load from its tier and what it would cost to compute again.
/// Source: the offloading-conditions article (LB-2); the quadratic prefill term is ours.
struct LoadCosts {
  Tokens tokens;
  Bytes bytes;
  BytesPerSecond bandwidth;
  Seconds latency{0};
  Seconds prefill_fixed{0};
  Seconds prefill_per_token{0};
  Seconds prefill_per_token2{0};

  [[nodiscard]] Seconds load(double n) const;
  [[nodiscard]] Seconds prefill(double n) const;
  /// Strictly faster.
  [[nodiscard]] bool loading_wins(double n) const { return load(n) < prefill(n); }
  /// The least length from which on loading wins at every length; nothing where there is none (or
  /// none below 2^53 tokens).
  [[nodiscard]] std::optional<std::int64_t> crossover() const;
};

/// Errors: InvalidArgument for values that are not finite and in range.
[[nodiscard]] Status check(const LoadCosts& costs);

/// Decides how many leading tokens of a cached prefix are loaded; the rest is computed.
class LoadPolicy {
 public:
  virtual ~LoadPolicy() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;
  /// Precondition: check() of the costs.
  [[nodiscard]] virtual Tokens decide(const LoadCosts& costs) = 0;
};

/// Loads where measured rates say that it is faster. Prefill grows at least linearly, so a part of
/// the prefix never beats both none and all of it.
/// Owner: one thread, one object a tier: it remembers its last answer, and changes it only when the
///        other is faster by kMargin, so that rates near the crossover do not make it flip.
class MeasuredCrossoverPolicy final : public LoadPolicy {
 public:
  static constexpr double kMargin = 0.1;
  [[nodiscard]] std::string_view name() const override { return "measured_crossover"; }
  [[nodiscard]] Tokens decide(const LoadCosts& costs) override;

 private:
  std::optional<bool> loaded_last_;
};

class AlwaysLoadPolicy final : public LoadPolicy {
 public:
  [[nodiscard]] std::string_view name() const override { return "always"; }
  [[nodiscard]] Tokens decide(const LoadCosts& costs) override { return costs.tokens; }
};

class NeverLoadPolicy final : public LoadPolicy {
 public:
  [[nodiscard]] std::string_view name() const override { return "never"; }
  [[nodiscard]] Tokens decide(const LoadCosts&) override { return Tokens{0}; }
};

}  // namespace kvd::planner
