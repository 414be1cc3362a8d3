#include "kernels/device/cuda/copies/bursts/burst_size.hpp"

#include <algorithm>
#include <chrono>

namespace kvd::kernels::cuda {
namespace {

// The rate of a PCIe 4 link, the slowest that is common. The first bursts should not take too long,
// since long ones hurt.
constexpr double kFirstBytesPerSecond = 25e9;
// A measurement ends when the bursts in it have taken this long together.
constexpr Nanoseconds kMeasured = std::chrono::microseconds(500);

}  // namespace

Bytes BurstSize::first(const BurstRule& rule) {
  if (rule.time == Nanoseconds(0)) return rule.most;
  const double bytes = kFirstBytesPerSecond * std::chrono::duration<double>(rule.time).count();
  return std::clamp(Bytes(static_cast<std::int64_t>(bytes)), rule.least, rule.most);
}

Nanoseconds BurstSize::time_of(Bytes bytes) const {
  const double share = static_cast<double>(bytes.value) / static_cast<double>(size_.value);
  return Nanoseconds(static_cast<std::int64_t>(share * static_cast<double>(rule_.time.count())));
}

// The time of a short burst tells more about how long starting one takes than about the link.
void BurstSize::on_burst(Bytes bytes, Nanoseconds elapsed) {
  if (rule_.time == Nanoseconds(0) || bytes * 2 < size_) return;
  measured_bytes_ += bytes;
  measured_time_ += elapsed;
  if (measured_time_ < kMeasured) return;
  // Moves only half way, so that a single odd measurement, as when another process uses the link,
  // does not decide alone.
  size_ = Bytes((size_.value + at_rate().value) / 2);
  measured_bytes_ = Bytes(0);
  measured_time_ = Nanoseconds(0);
}

Bytes BurstSize::at_rate() const {
  const double share = static_cast<double>(rule_.time.count()) /
                       static_cast<double>(std::max<std::int64_t>(measured_time_.count(), 1));
  const auto bytes = static_cast<std::int64_t>(static_cast<double>(measured_bytes_.value) * share);
  return std::clamp(Bytes(bytes), rule_.least, rule_.most);
}

}  // namespace kvd::kernels::cuda
