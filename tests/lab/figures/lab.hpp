#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <map>
#include <string>

#include "kvd/sim/run/inputs.hpp"
#include "kvd/sim/run/metrics.hpp"
#include "kvd/sim/run/setting.hpp"

namespace kvd::sim {

/// One point of a figure: a policy on a machine under a workload.
struct Trial {
  std::string profile;
  std::string policy;
  std::string workload;
  WorkloadOptions options;  ///< the Lab sets the seed
  core::Slo slo;
  /// What requests announce, once `adjust` has shaped them (workload/announce.hpp).
  std::string max_tokens = "exact";
  /// What differs from the profile and policy as named, and the name of that variant.
  std::string variant = {};
  std::function<void(Setting&)> adjust = {};
};

/// The same with requests that announce what clients announce, not what they will make.
[[nodiscard]] inline Trial as_clients_announce(Trial trial) {
  trial.max_tokens = "mix";
  return trial;
}

/// Runs trials, each only once however many figures ask for it.
/// Owner: one thread.
class Lab {
 public:
  /// `progress`: where it reports how far it is; null: nowhere.
  Lab(int seeds, std::uint64_t first_seed, std::ostream* progress)
      : seeds_(seeds), first_seed_(first_seed), progress_(progress) {}

  [[nodiscard]] std::uint64_t first_seed() const { return first_seed_; }
  [[nodiscard]] int seeds() const { return seeds_; }

  /// Means over all seeds. Errors: as make_workload(), load_profile(), policy_named() and run().
  [[nodiscard]] Result<Summary> measure(const Trial& trial);
  /// One run with everything that it recorded.
  [[nodiscard]] Result<RunResult> play(const Trial& trial, std::uint64_t seed);

  /// Refused requests per run, over everything that measure() has answered so far.
  [[nodiscard]] double refused() const { return refused_; }

  /// Grows with every point that is asked for.
  [[nodiscard]] std::size_t trials() const { return trials_; }

  void tell(const std::string& what, std::size_t done, std::size_t all);

 private:
  int seeds_;
  std::uint64_t first_seed_;
  std::ostream* progress_;
  double refused_ = 0;
  std::size_t trials_ = 0;
  std::map<std::string, Summary> known_;
};

}  // namespace kvd::sim
