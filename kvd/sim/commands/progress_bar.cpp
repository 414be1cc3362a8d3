#include "kvd/sim/commands/progress_bar.hpp"

#include <algorithm>
#include <ostream>

namespace kvd::sim {
namespace {

constexpr Nanoseconds kBetween = std::chrono::milliseconds(100);
constexpr std::size_t kCells = 30;

}  // namespace

void ProgressBar::show(double share, const std::string& what) {
  if (!on_ || clock_.now() < next_) return;
  next_ = clock_.now() + kBetween;
  const double bounded = std::clamp(share, 0.0, 1.0);
  const auto full = static_cast<std::size_t>(bounded * kCells);
  out_ << "\r[" << std::string(full, '#') << std::string(kCells - full, ' ') << "] "
       << static_cast<int>(bounded * 100) << " % " << what << "\033[K" << std::flush;
  drawn_ = true;
}

void ProgressBar::wipe() {
  if (drawn_) out_ << "\r\033[K" << std::flush;
  drawn_ = false;
}

}  // namespace kvd::sim
