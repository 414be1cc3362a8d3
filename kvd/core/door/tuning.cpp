#include "kvd/core/door/tuning.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string_view>

#include "ipc/vocabulary/slo_class.hpp"

namespace kvd::core {
namespace {

constexpr double kMaxWeight = 1e6;
constexpr double kMaxLag = 100;
constexpr std::int64_t kMaxWindow = 1'000'000'000;
constexpr Bytes kMaxTransfer = kGiB * 1024 * 1024;
constexpr Nanoseconds kMinGoal{1'000};                 ///< 1 us
constexpr Nanoseconds kMaxGoal{86'400'000'000'000ll};  ///< a day
constexpr std::size_t kMaxClasses = 64;                ///< each is three series of the metrics
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
  void policy(planner::Decision decision, const std::string& policy) {
    const Status status = policies_.check(decision, policy);
    if (!status.ok()) add(std::string(name(decision)) + ".policy", status.error().message);
  }
  void goal(const std::string& path, Nanoseconds value) {
    if (value >= kMinGoal && value <= kMaxGoal) return;
    add(path, "must be from 1e-06 to 86400 seconds, is " + number(to_seconds(value)));
  }
  [[nodiscard]] std::vector<std::string> take() { return std::move(found_); }

 private:
  const planner::Catalogue& policies_;
  std::vector<std::string> found_;
};

void check(const RotationTuning& rotation, Faults& faults) {
  faults.policy(planner::Decision::kRotation, rotation.policy);
  faults.number_in("rotation.alpha", rotation.alpha, 0, kMaxWeight);
  faults.number_in("rotation.beta_b", rotation.beta_b, -kMaxLag, kMaxLag);
  faults.number_in("rotation.beta_f", rotation.beta_f, -kMaxLag, kMaxLag);
  if (rotation.overload != "ttft" && rotation.overload != "goodput") {
    faults.add("rotation.overload", "must be ttft or goodput, is \"" + rotation.overload + "\"");
  }
  if (rotation.pacing != "engine" && rotation.pacing != "client") {
    faults.add("rotation.pacing", "must be engine or client, is \"" + rotation.pacing + "\"");
  }
  if (rotation.b_xfer && (*rotation.b_xfer <= Bytes(0) || *rotation.b_xfer > kMaxTransfer)) {
    faults.add("rotation.b_xfer", "must be \"auto\" or a size from 1 byte to 1 PiB, is " +
                                      std::to_string(rotation.b_xfer->value));
  }
}

void check(const PlacementTuning& placement, Faults& faults) {
  faults.policy(planner::Decision::kPlacement, placement.policy);
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
}

void check(const AdmissionTuning& admission, Faults& faults) {
  faults.policy(planner::Decision::kAdmission, admission.policy);
  faults.number_in("admission.alpha", admission.alpha, 0, kMaxWeight);
  faults.number_in("admission.beta", admission.beta, 0, kMaxWeight);
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

SloClasses::const_iterator class_of(const SloClasses& classes, std::uint32_t number,
                                    const std::string& usual) {
  if (number == 0) return classes.find(usual);
  const auto named = std::find_if(classes.begin(), classes.end(), [&](const auto& entry) {
    return slo_class_number(entry.first) == number;
  });
  return named == classes.end() ? classes.find(usual) : named;
}

std::vector<std::string> Tuning::faults(const planner::Catalogue& policies) const {
  Faults faults(policies);
  check(rotation, faults);
  check(placement, faults);
  check(admission, faults);
  faults.policy(planner::Decision::kLoad, load.policy);
  check(slo, faults);
  return faults.take();
}

}  // namespace kvd::core
