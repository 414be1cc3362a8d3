#pragma once

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "planner/model/fitted_line.hpp"
#include "planner/model/seconds.hpp"

namespace kvd::planner {

/// Latency and bandwidth of a tier from what its transfers took: a line through (bytes, seconds)
/// in which each observation counts kKeep of the one after it.
/// Source: kvd; the offloading-conditions article asks for measured rates and does not say how.
/// Owner:  one thread, one object a tier and direction.
class TierRates {
 public:
  /// A changed link is followed to 95 % within some 30 transfers …
  static constexpr double kKeep = 0.9;
  /// … and at once where two transfers in a row were this many times slower, or faster, than the
  /// line says.
  static constexpr double kStep = 2;

  /// Errors: InvalidArgument for a transfer without bytes or time.
  [[nodiscard]] Status observe(Bytes bytes, Seconds took);

  [[nodiscard]] bool measured() const { return fit_.measured(); }
  /// Where all transfers were about the same size the line has no slope to show: then everything
  /// counts as bandwidth. Precondition: measured().
  [[nodiscard]] BytesPerSecond bandwidth() const;
  [[nodiscard]] Seconds latency() const;

 private:
  [[nodiscard]] FittedLine::Line line() const;

  FittedLine fit_{kKeep};  // seconds over bytes
  FittedLine new_{kKeep};  // what did not fit the line, twice in a row or once
  int misfits_ = 0;        // of these; below 0: they were faster
};

}  // namespace kvd::planner
