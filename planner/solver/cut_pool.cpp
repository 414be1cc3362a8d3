#include "planner/solver/cut_pool.hpp"

#include <numeric>

namespace kvd::planner {

void CutPool::add(const PathCut& cut) {
  if (cuts_.size() < kCapacity) {
    cuts_.push_back(cut);
    base_.push_back(0);
    last_ = cuts_.size() - 1;
    return;
  }
  cuts_[next_] = cut;
  last_ = next_;
  next_ = (next_ + 1) % kCapacity;
}

void CutPool::base(std::span<const double> load) {
  for (std::size_t i = 0; i < cuts_.size(); ++i) {
    base_[i] =
        std::inner_product(load.begin(), load.end(), cuts_[i].slope.begin(), cuts_[i].constant);
  }
}

bool CutPool::above(double limit, Shift a, Shift b) {
  const auto value = [&](std::size_t i) {
    const auto& slope = cuts_[i].slope;
    return base_[i] + a.blocks * (slope[a.to] - slope[a.from]) +
           b.blocks * (slope[b.to] - slope[b.from]);
  };
  if (cuts_.empty()) return false;
  if (value(last_) > limit) return true;
  for (std::size_t i = 0; i < cuts_.size(); ++i) {
    if (value(i) > limit) {
      last_ = i;
      return true;
    }
  }
  return false;
}

}  // namespace kvd::planner
