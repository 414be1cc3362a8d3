#pragma once

#include <iosfwd>
#include <string>

#include "ipc/vocabulary/clock.hpp"

namespace kvd::sim {

/// A line on a terminal that shows how far the work is. It is drawn at most ten times a second and
/// wiped at the end. Owner: one thread.
class ProgressBar {
 public:
  /// Draws nothing when off.
  ProgressBar(std::ostream& out, bool on) : out_(out), on_(on) {}
  ~ProgressBar() { wipe(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// `share` of the whole is done, 0 to 1; `what` is under way.
  void show(double share, const std::string& what);
  void wipe();
  [[nodiscard]] bool on() const { return on_; }

 private:
  std::ostream& out_;
  bool on_;
  bool drawn_ = false;
  SteadyClock clock_;
  TimePoint next_{0};
};

}  // namespace kvd::sim
