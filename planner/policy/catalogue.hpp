#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "planner/policy/admission/admission.hpp"
#include "planner/policy/placement/placement.hpp"
#include "planner/policy/rotation.hpp"

namespace kvd::planner {

/// The decisions of MODEL.md "The four decisions".
enum class Decision : std::uint8_t { kRotation, kPlacement, kAdmission, kLoad };

/// As in keys: "rotation".
[[nodiscard]] std::string_view name(Decision decision);

/// The policies that a program knows, by decision and name. A daemon knows those of
/// stock_policies(); programs that compare add the papers' (planner/baselines).
/// Owner: whoever made it; does not change once it is in use, so any thread may read it.
/// Errors: InvalidArgument for a name that it does not know, with those that it knows.
class Catalogue {
 public:
  template <class Policy>
  using Make = std::function<std::unique_ptr<Policy>()>;

  /// Adds one that names() lists. The names are literals, and each is new.
  void add_rotation(std::string_view name, Make<RotationPolicy> make);
  void add_placement(std::string_view name, Make<PlacementPolicy> make);
  void add_admission(std::string_view name, Make<AdmissionPolicy> make);
  /// A second name, which names() leaves out.
  void add_unlisted(std::string name, Make<RotationPolicy> make);
  void add_unlisted(std::string name, Make<AdmissionPolicy> make);

  /// In the order in which they were added; those of kLoad are the same for every program.
  [[nodiscard]] std::span<const std::string_view> names(Decision decision) const;
  /// Ok where the policy is known, listed or not.
  [[nodiscard]] Status check(Decision decision, std::string_view policy) const;
  /// A policy of its own for each caller: it may hold scratch memory.
  [[nodiscard]] Result<std::unique_ptr<RotationPolicy>> rotation(std::string_view policy) const;
  [[nodiscard]] Result<std::unique_ptr<PlacementPolicy>> placement(std::string_view policy) const;
  [[nodiscard]] Result<std::unique_ptr<AdmissionPolicy>> admission(std::string_view policy) const;

 private:
  template <class Policy>
  using Table = std::map<std::string, Make<Policy>, std::less<>>;
  template <class Policy>
  [[nodiscard]] Result<std::unique_ptr<Policy>> make(Decision decision, const Table<Policy>& table,
                                                     std::string_view policy) const;
  [[nodiscard]] Error unknown(Decision decision, std::string_view policy) const;

  std::array<std::vector<std::string_view>, 3> names_;  ///< by decision; load.hpp has the fourth's
  // Whoever wants one by name, listed or not.
  Table<RotationPolicy> rotation_;
  Table<PlacementPolicy> placement_;
  Table<AdmissionPolicy> admission_;
};

/// What a daemon can run; the first of each decision is what it runs unless it is told.
[[nodiscard]] const Catalogue& stock_policies();

}  // namespace kvd::planner
