#include "kvd/core/ledger/budget.hpp"

#include <algorithm>
#include <cstdint>

namespace kvd::core {

Bytes Budget::per_step(DeviceId device) const {
  if (context_.tuning.rotation.b_xfer) return *context_.tuning.rotation.b_xfer;
  const auto& hbm = context_.config.hbm[device.value];
  const Bytes share = Bytes(hbm.slab_bytes.value * hbm.slabs / 16);
  const double rate = knowledge_.slower_link(device);
  const double step_s = knowledge_.mean_step_s(device);
  if (rate == 0 || step_s == 0) return share;
  return std::min(share, Bytes(static_cast<std::int64_t>(std::min(rate * step_s, 1e18))));
}

Bytes Budget::per_step(const Session& session) const {
  Bytes sum;
  for (const DeviceId device : session.devices().all()) sum += per_step(device);
  return sum;
}

void Budget::refill(DeviceId device) {
  Bucket& bucket = buckets_[device.value];
  const auto depth = static_cast<double>(per_step(device).value);
  const double rate = knowledge_.slower_link(device);
  // Before the first copy nothing is known of the link, so only the budget bounds a step.
  const double added = rate == 0 ? depth : rate * to_seconds(context_.now - bucket.filled);
  bucket.left = std::min(depth, bucket.left + added);
  bucket.filled = context_.now;
}

void Budget::restart() {
  for (Bucket& bucket : buckets_) bucket.filled = context_.now;
}

}  // namespace kvd::core
