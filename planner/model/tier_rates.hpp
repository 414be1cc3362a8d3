#pragma once

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "planner/model/fitted_line.hpp"
#include "planner/model/seconds.hpp"

namespace kvd::planner {

/// Latency and bandwidth of a tier, learned from how long its transfers took: a line through
/// (bytes, seconds) in which each observation counts kKeep times as much as the one after it.
/// Source: kvd; the offloading-conditions article asks for measured rates and does not say how to
/// get them.
/// Owner:  one thread, one object for each tier and direction.
class TierRates {
 public:
  /// A changed link is followed to 95 % within about 30 transfers …
  static constexpr double kKeep = 0.9;
  /// … and at once where two transfers in a row were this many times slower, or faster, than the
  /// line says.
  static constexpr double kStep = 2;

  /// Errors: InvalidArgument for a transfer without bytes or time.
  [[nodiscard]] Status observe(Bytes bytes, Seconds took);

  [[nodiscard]] bool measured() const { return fit_.measured(); }
  /// Where all transfers have about the same size the line has no slope: then everything counts as
  /// bandwidth. Precondition: measured().
  [[nodiscard]] BytesPerSecond bandwidth() const;
  [[nodiscard]] Seconds latency() const;

 private:
  [[nodiscard]] FittedLine::Line line() const;

  FittedLine fit_{kKeep};  // seconds over bytes
  FittedLine new_{kKeep};  // one or two transfers in a row that did not fit the line
  int misfits_ = 0;        // how many; below 0: they were faster
};

}  // namespace kvd::planner
