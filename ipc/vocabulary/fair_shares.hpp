#pragma once

#include <algorithm>
#include <cstdint>
#include <map>

namespace kvd {

/// Shares out one supply among owners who come and go. An owner may always have `floor`, and beyond
/// it half of what the others leave of `common`. So an owner that is alone may have half, the next
/// one always finds room, and no number of greedy owners takes anybody's floor. Together the owners
/// have `common` and a floor each at most. Source: kvd design. Cost: O(log owners) a call.
template <class Owner>
class FairShares {
 public:
  FairShares(std::int64_t common, std::int64_t floor) : common_(common), floor_(floor) {}

  /// The most that the owner may have now.
  [[nodiscard]] std::int64_t most(Owner owner) const {
    const std::int64_t left = common_ - std::min(common_, all_ - of(owner));
    return std::max(floor_, left / 2);
  }
  [[nodiscard]] bool fits(Owner owner, std::int64_t more) const {
    return more <= 0 || of(owner) + more <= most(owner);
  }
  /// Negative: it gives back.
  void add(Owner owner, std::int64_t change) {
    all_ += change;
    const auto held = held_.try_emplace(owner).first;
    held->second += change;
    if (held->second == 0) held_.erase(held);
  }
  [[nodiscard]] std::int64_t of(Owner owner) const {
    const auto found = held_.find(owner);
    return found == held_.end() ? 0 : found->second;
  }
  [[nodiscard]] std::int64_t all() const { return all_; }

 private:
  std::int64_t common_;
  std::int64_t floor_;
  std::int64_t all_ = 0;
  std::map<Owner, std::int64_t> held_;
};

}  // namespace kvd
