#include "kvd/store/cache/all_rows.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

namespace kvd::store {

namespace {

/// Each pass takes the rows whose age, as a share of all rows, is beyond that of the pass before.
constexpr double kPasses[] = {1.0 / 32, 1.0 / 8, 1.0 / 2, HUGE_VAL};
/// Entries that one call looks at, and rows that it offers, all of one pass.
constexpr std::size_t kLooksAtOnce = 16384, kOfferedAtOnce = 4096;

}  // namespace

AllRows::AllRows(Cache& cache)
    : cache_(cache), rule_(std::exchange(cache.disk_rule_, SecondTouch{1})) {}

AllRows::~AllRows() { cache_.disk_rule_ = rule_; }

void AllRows::offer() {
  if (waiting() > 0) return;
  std::size_t count = 0;
  for (std::size_t i = 0; i < kLooksAtOnce && count < kOfferedAtOnce && !over_; ++i) {
    const auto next = cache_.shelves_.lower_bound(domain_);
    if (next == cache_.shelves_.end()) {
      if (count > 0) return;
      over_ = ++pass_ == std::size(kPasses);
      domain_ = DomainId(0), entry_ = EntryId(0);
      continue;
    }
    auto& [domain, shelf] = *next;
    if (domain != domain_) domain_ = domain, entry_ = EntryId(0);
    if (++entry_.value >= shelf.rows.end().value) {
      domain_ = DomainId(domain.value + 1), entry_ = EntryId(0);
      continue;
    }
    const RowId row = shelf.rows.find(entry_);
    if (!row) continue;
    const double share = age(shelf.index, entry_) / static_cast<double>(shelf.index.size());
    if (share > kPasses[pass_] || (pass_ > 0 && share <= kPasses[pass_ - 1])) continue;
    ++rows_, ++count;
    if (cache_.blocks_.complete(row, Tier::kDram)) {
      cache_.consider_for_disk(domain, shelf, entry_);
    } else if (cache_.is_alone(row)) {
      cache_.alone_.emplace_back(domain, entry_);
    }
  }
}

std::size_t AllRows::waiting() const {
  std::size_t sum = 0;
  for (const auto& [domain, shelf] : cache_.shelves_) sum += shelf.for_disk.size();
  return sum;
}

std::size_t AllRows::left() const {
  std::size_t all = 0;
  for (const auto& [domain, shelf] : cache_.shelves_) all += shelf.index.size();
  const std::size_t ahead = over_ ? 0 : all - std::min(all, rows_);
  return ahead + waiting() + cache_.alone_.size();
}

}  // namespace kvd::store
