#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string_view>
#include <type_traits>
#include <variant>

#include "kvd/core/door/tuning.hpp"
#include "kvd/core/door/tuning_keys.hpp"

namespace kvd::core {
namespace {

constexpr double kMaxWeight = 1e6;
constexpr std::int64_t kMaxWindow = 1'000'000'000;
constexpr Nanoseconds kMinGoal{1'000};                 ///< 1 us
constexpr Nanoseconds kMaxGoal{86'400'000'000'000ll};  ///< a day
constexpr std::size_t kMaxClasses = 64;  ///< each class is three series of the metrics
constexpr std::size_t kMaxClassName = 32;

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

/// Collects faults, each as "key.path: what it must be".
class Faults {
 public:
  explicit Faults(const planner::Catalogue& policies) : policies_(policies) {}
  void add(const std::string& path, const std::string& message) {
    found_.push_back(path + ": " + message);
  }
  void number_in(const std::string& path, double value, double low, double high) {
    // This form fails for NaN.
    if (value >= low && value <= high) return;
    add(path,
        "must be a number from " + number(low) + " to " + number(high) + ", is " + number(value));
  }
  void choice(const TuningKey& key, const std::string& value) {
    const std::string path(key.path);
    if (key.choices.empty()) return policy(path, std::string(key.table()), value);
    std::string known;
    for (const std::string_view one : key.choices) {
      if (one == value) return;
      known.append(known.empty() ? "" : " or ").append(one);
    }
    add(path, "must be " + known + ", is \"" + value + "\"");
  }
  void bytes(const TuningKey& key, const std::optional<Bytes>& value) {
    if (!value) return;
    const auto number = static_cast<double>(value->value);
    if (number >= key.least && number <= key.most) return;
    add(std::string(key.path),
        "must be \"auto\" or a size from 1 byte to 1 PiB, is " + std::to_string(value->value));
  }
  void goal(const std::string& path, Nanoseconds value) {
    if (value >= kMinGoal && value <= kMaxGoal) return;
    add(path, "must be from 1e-06 to 86400 seconds, is " + number(to_seconds(value)));
  }
  [[nodiscard]] std::vector<std::string> take() { return std::move(found_); }

 private:
  void policy(const std::string& path, const std::string& table, const std::string& value) {
    using planner::Decision;
    for (const Decision decision :
         {Decision::kRotation, Decision::kPlacement, Decision::kAdmission, Decision::kLoad}) {
      if (name(decision) != table) continue;
      const Status status = policies_.check(decision, value);
      if (!status.ok()) add(path, status.error().message);
    }
  }

  const planner::Catalogue& policies_;
  std::vector<std::string> found_;
};

void check(const TuningKey& key, const Tuning& tuning, Faults& faults) {
  const auto at = [&](const auto& field) {
    const auto& value = field.of(tuning);
    using Value = std::decay_t<decltype(value)>;
    if constexpr (std::is_same_v<Value, std::string>) {
      faults.choice(key, value);
    } else if constexpr (std::is_same_v<Value, double>) {
      faults.number_in(std::string(key.path), value, key.least, key.most);
    } else if constexpr (std::is_same_v<Value, std::optional<Bytes>>) {
      faults.bytes(key, value);
    }
  };
  std::visit(at, key.field);
}

/// What only comparisons set.
void check_others(const Tuning& tuning, Faults& faults) {
  const PlacementTuning& placement = tuning.placement;
  faults.number_in("placement.alpha", placement.alpha, 0, kMaxWeight);
  if (placement.window_min < 1) {
    faults.add("placement.window.min",
               "must be at least 1 token, is " + std::to_string(placement.window_min));
  }
  if (placement.window_max < placement.window_min || placement.window_max > kMaxWindow) {
    faults.add("placement.window.max", "must be from placement.window.min to " +
                                           std::to_string(kMaxWindow) + " tokens, is " +
                                           std::to_string(placement.window_max));
  }
  faults.number_in("admission.alpha", tuning.admission.alpha, 0, kMaxWeight);
  faults.number_in("admission.beta", tuning.admission.beta, 0, kMaxWeight);
}

/// Class names become label values and parts of key paths.
bool is_class_name(std::string_view text) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  };
  return !text.empty() && text.size() <= kMaxClassName &&
         std::all_of(text.begin(), text.end(), allowed);
}

void check(const SloClasses& classes, Faults& faults) {
  if (!classes.contains("default")) {
    faults.add("slo.default", "must exist: it serves every engine that names no class");
  }
  if (classes.size() > kMaxClasses) {
    faults.add("slo", "at most " + std::to_string(kMaxClasses) + " classes, are " +
                          std::to_string(classes.size()));
  }
  for (const auto& [class_name, slo] : classes) {
    if (!is_class_name(class_name)) {
      faults.add("slo", "a class name has 1 to " + std::to_string(kMaxClassName) +
                            " letters, digits, '_' or '-'");
      continue;
    }
    faults.goal("slo." + class_name + ".ttft_s", slo.ttft);
    faults.goal("slo." + class_name + ".tbt_s", slo.tbt);
    faults.goal("slo." + class_name + ".tpot_s", slo.tpot);
    if (slo.gap) faults.goal("slo." + class_name + ".gap_s", *slo.gap);
  }
}

}  // namespace

std::vector<std::string> Tuning::faults(const planner::Catalogue& policies) const {
  Faults faults(policies);
  for (const TuningKey& key : tuning_keys()) check(key, *this, faults);
  check_others(*this, faults);
  check(slo, faults);
  return faults.take();
}

}  // namespace kvd::core
