#include "kvd/core/budget.hpp"

#include <algorithm>
#include <cstdint>

namespace kvd::core {

Bytes Budget::per_step() const {
  if (context_.tuning.rotation.b_xfer) return *context_.tuning.rotation.b_xfer;
  const auto& hbm = context_.config.hbm;
  const Bytes share = Bytes(hbm.slab_bytes.value * hbm.slabs / 16);
  const double rate = knowledge_.slower_link();
  const double step_s = knowledge_.mean_step_s();
  if (rate == 0 || step_s == 0) return share;
  return std::min(share, Bytes(static_cast<std::int64_t>(std::min(rate * step_s, 1e18))));
}

void Budget::refill() {
  const auto depth = static_cast<double>(per_step().value);
  const double rate = knowledge_.slower_link();
  // Before the first copy the link is unmeasured: the budget alone bounds a step.
  const double added = rate == 0 ? depth : rate * to_seconds(context_.now - filled_);
  left_ = std::min(depth, left_ + added);
  filled_ = context_.now;
}

}  // namespace kvd::core
