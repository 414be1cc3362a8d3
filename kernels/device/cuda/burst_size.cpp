#include "kernels/device/cuda/burst_size.hpp"

#include <algorithm>
#include <chrono>

namespace kvd::kernels::cuda {
namespace {

// A PCIe 4 link, the slowest that is common: a burst that is too long in time is what hurts.
constexpr double kFirstBytesPerSecond = 25e9;
// Of bursts without a gap, for one measurement.
constexpr Nanoseconds kRun = std::chrono::microseconds(500);

}  // namespace

Bytes BurstSize::first(const BurstRule& rule) {
  if (rule.time == Nanoseconds(0)) return rule.most;
  const double bytes = kFirstBytesPerSecond * std::chrono::duration<double>(rule.time).count();
  return std::clamp(Bytes(static_cast<std::int64_t>(bytes)), rule.least, rule.most);
}

void BurstSize::on_idle() {
  run_bytes_ = Bytes(0);
  run_time_ = Nanoseconds(0);
}

void BurstSize::on_burst(Bytes bytes, Nanoseconds elapsed) {
  if (rule_.time == Nanoseconds(0)) return;
  run_bytes_ += bytes;
  run_time_ += elapsed;
  if (run_time_ < kRun) return;
  // Half way: one odd run, as when another process has the link, does not decide alone.
  size_ = Bytes((size_.value + at_rate().value) / 2);
  on_idle();
}

Bytes BurstSize::at_rate() const {
  const double share = static_cast<double>(rule_.time.count()) /
                       static_cast<double>(std::max<std::int64_t>(run_time_.count(), 1));
  const auto bytes = static_cast<std::int64_t>(static_cast<double>(run_bytes_.value) * share);
  return std::clamp(Bytes(bytes), rule_.least, rule_.most);
}

}  // namespace kvd::kernels::cuda
