#include "kvd/store/index/turnover_eviction.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

namespace kvd::store {

// ---- Ghosts ----

void Ghosts::grow(std::size_t places) {
  if (places <= tags_.size()) return;
  const std::vector<std::uint32_t> old =
      std::exchange(tags_, std::vector<std::uint32_t>(std::bit_ceil(places)));
  size_ = 0;
  for (const std::uint32_t tag : old) {
    if (tag != 0) remember(tag);
  }
}

void Ghosts::remember(std::uint32_t tag) {
  std::uint32_t& known = place(tag);
  if (known == 0) ++size_;
  known = tag;
}

bool Ghosts::take(std::uint32_t tag) {
  std::uint32_t& known = place(tag);
  if (known != tag) return false;
  known = 0;
  --size_;
  return true;
}

// ---- TurnoverEviction ----

std::uint32_t TurnoverEviction::class_of(EntryId id) const {
  if (entries_[id].retained) return kRetained;
  if (entries_[id].demoted) return kDemoted;
  if (!classes_) return 0;
  const std::uint16_t uses = entries_[id].uses;
  return (uses >= 2 ? 1U : 0U) + (uses >= 4 ? 1U : 0U) + (uses >= 7 ? 1U : 0U);
}

// The tag covers the space, so that no domain can tell by it what another one has.
std::uint32_t TurnoverEviction::tag(EntryId id) const {
  const Entry& entry = entries_[id];
  std::uint64_t word = 0;
  std::memcpy(&word, entry.digest.bytes.data(), sizeof word);
  word = (word ^ entry.space.value) * 0x9e3779b97f4a7c15ULL;
  const auto tag = static_cast<std::uint32_t>(word >> 32);
  return tag == 0 ? 1 : tag;
}

void TurnoverEviction::added(EntryId id) {
  ++blocks_;
  now_ = std::max(now_, entries_[id].last);
  if (!classes_) return;
  popular_.grow(blocks_ / 2);
  others_.grow(blocks_ / 2);
  if (popular_.take(tag(id))) {
    learn(kPopularCounts, popular_, others_);
    std::uint16_t& uses = entries_[id].uses;
    uses = std::max(uses, kUsesOfReturned);
  } else if (others_.take(tag(id))) {
    learn(-1, others_, popular_);
  }
}

void TurnoverEviction::removed(EntryId id) {
  --blocks_;
  if (classes_) (class_of(id) > 0 ? popular_ : others_).remember(tag(id));
}

// A ghost that comes back says more where its kind has fewer ghosts.
void TurnoverEviction::learn(double counts, const Ghosts& hit, const Ghosts& other) {
  const double ratio = static_cast<double>(other.size()) / static_cast<double>(hit.size() + 1);
  const double step =
      std::clamp(ratio, 1.0, kMostRatio) / static_cast<double>(std::max(kLeastTurnover, blocks_));
  favour_ = std::clamp(favour_ + counts * step, kLeastFavour, kMostFavour);
}

// Where all others are popular, a new conversation would else make way for its own next turn.
EntryId TurnoverEviction::victim() {
  if (!heap_.empty(kDemoted)) return heap_.least(kDemoted);
  const double settled = blocks_ < kLeastTurnover ? std::numeric_limits<double>::infinity()
                                                  : now_ - kGrace * static_cast<double>(blocks_);
  EntryId victim;
  bool is_new = true;
  double least = 0;
  for (std::uint32_t group = 0; group < heap_.groups(); ++group) {
    if (heap_.empty(group) || (group == kRetained && victim)) continue;
    const double last = heap_.least_number(group);
    const double rank = last + bonus(group);
    const bool is_newer = last > settled;
    if (victim && (is_newer > is_new || (is_newer == is_new && rank >= least))) continue;
    victim = heap_.least(group);
    is_new = is_newer;
    least = rank;
  }
  return victim;
}

}  // namespace kvd::store
