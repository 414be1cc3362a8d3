#pragma once

#include <array>
#include <cstdint>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/core/context.hpp"
#include "kvd/core/events.hpp"
#include "kvd/core/requests.hpp"
#include "planner/policy/length_predictor.hpp"

namespace kvd::core {

/// What the policies know beyond memory: how long steps take, how fast the links are, how long
/// requests stay away, how long answers get, and what each user has saved up.
///
/// Source: kvd design; lengths as planner::LengthPredictor, deposits as TokenDeposit.
///
/// Owner: control thread. Cost: O(1), measure_step O(requests of the session).
class Knowledge {
 public:
  Knowledge(Context& context, Requests& requests) : context_(context), requests_(requests) {}

  // ---- learning ----
  /// Copies into `to` took so long. Follows a changed link within a few copies.
  void measure_link(Tier to, const CopyFinished& finished);
  /// From one step of an engine to its next.
  void measure_gap(double seconds);
  /// The iteration that the session reports took so long, pipelined or not.
  void measure_step(Session& session, double took);
  static void ended(Session& session, const Request& request);
  void returned(const Request& request);

  // ---- knowing ----
  /// Bytes a second, h2d and d2h; 0: not measured yet.
  [[nodiscard]] const std::array<double, 2>& link_rates() const { return link_rates_; }
  /// Of the slower direction; 0: one of them is not measured yet.
  [[nodiscard]] double slower_link() const;
  /// The same with a guess in place of 0.
  [[nodiscard]] double link_or_default() const;
  [[nodiscard]] double fetch_rate() const;  ///< bytes a second into HBM
  [[nodiscard]] double mean_step_s() const { return mean_step_s_; }
  /// Of requests that were rotated out and came back, in seconds.
  [[nodiscard]] double mean_absence_s() const { return mean_absence_s_; }
  [[nodiscard]] planner::LengthEstimate expected_length(const Request& request) const;
  [[nodiscard]] std::int64_t saved_up(Request& request) const;  ///< its deposit now

 private:
  void measure_plan(Session& session, double took);

  Context& context_;
  Requests& requests_;
  std::array<double, 2> link_rates_{};
  double mean_step_s_ = 0;
  double mean_absence_s_ = 0;
};

}  // namespace kvd::core
