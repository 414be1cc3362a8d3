#include "kvd/core/fair_grants.hpp"

#include <algorithm>
#include <numeric>

namespace kvd::core {

namespace {

using Slabs = std::int64_t;

/// What is given out so far, against what there is and what a domain may have.
class Purse {
 public:
  Purse(std::span<const Want> wants, Slabs budget, const std::map<DomainId, Slabs>& limits)
      : wants_(wants), left_(budget), grants_(wants.size()) {
    for (const Want& want : wants) {
      const auto limit = limits.find(want.domain);
      domain_left_[want.domain] = limit == limits.end() ? INT64_MAX : limit->second;
    }
  }

  /// As much of it as there is, in whole grains where that is asked for.
  void give(std::size_t to, Slabs slabs, bool in_grains = true) {
    Slabs& domain_left = domain_left_[wants_[to].domain];
    slabs = std::min({slabs, left_, domain_left});
    if (in_grains) slabs -= slabs % wants_[to].grain;
    if (slabs <= 0) return;
    grants_[to] += slabs;
    left_ -= slabs;
    domain_left -= slabs;
  }
  [[nodiscard]] bool has(std::size_t for_whom, Slabs slabs) const {
    return slabs <= std::min(left_, domain_left_.at(wants_[for_whom].domain));
  }
  [[nodiscard]] Slabs left() const { return left_; }
  [[nodiscard]] Slabs left_of(DomainId domain) const {
    return std::min(left_, domain_left_.at(domain));
  }
  [[nodiscard]] Slabs grant(std::size_t of) const { return grants_[of]; }
  [[nodiscard]] const std::vector<Slabs>& grants() const { return grants_; }

 private:
  std::span<const Want> wants_;
  Slabs left_;
  std::map<DomainId, Slabs> domain_left_;
  std::vector<Slabs> grants_;
};

Slabs most_of(const Want& want) { return std::max(want.wanted, want.kept); }

/// What it gains where everybody who wants that much has `level`.
Slabs gain(const Purse& purse, const Want& want, std::size_t at, Slabs level) {
  return std::max<Slabs>(0, std::min(level, most_of(want)) - purse.grant(at));
}

/// The highest level whose `cost` fits; costs grow with the level.
template <class Cost>
Slabs highest_level(Slabs most, Slabs room, const Cost& cost) {
  Slabs low = 0, high = most;
  while (low < high) {
    const Slabs middle = low + (high - low + 1) / 2;
    if (cost(middle) <= room) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

void give_the_oldest(std::span<const Want> wants, Purse& purse) {
  std::vector<std::size_t> order(wants.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return wants[a].age > wants[b].age; });
  for (const std::size_t at : order) {
    const Want& want = wants[at];
    const Slabs missing = want.least - purse.grant(at);
    if (want.age <= Nanoseconds(0) || missing <= 0) continue;
    const Slabs grains = (missing + want.grain - 1) / want.grain * want.grain;
    if (purse.has(at, grains)) purse.give(at, grains);
  }
}

void share_the_rest(std::span<const Want> wants, Purse& purse) {
  Slabs most = 0;
  std::map<DomainId, Slabs> rooms;
  for (const Want& want : wants) {
    most = std::max(most, most_of(want));
    rooms[want.domain] = purse.left_of(want.domain);
  }
  const auto cost_in = [&](DomainId domain, Slabs level) {
    Slabs sum = 0;
    for (std::size_t at = 0; at < wants.size(); ++at) {
      if (wants[at].domain == domain) sum += gain(purse, wants[at], at, level);
    }
    return sum;
  };
  const Slabs level = highest_level(most, purse.left(), [&](Slabs at) {
    Slabs sum = 0;
    for (const auto& [domain, room] : rooms) sum += std::min(room, cost_in(domain, at));
    return sum;
  });
  std::vector<Slabs> gains(wants.size());
  for (const auto& [domain, room] : rooms) {
    const Slabs own =
        highest_level(level, room, [&, of = domain](Slabs at) { return cost_in(of, at); });
    for (std::size_t at = 0; at < wants.size(); ++at) {
      if (wants[at].domain == domain) gains[at] = gain(purse, wants[at], at, own);
    }
  }
  for (std::size_t at = 0; at < wants.size(); ++at) purse.give(at, gains[at]);
}

/// Grains that rounding left, the smallest grants first.
void give_the_remainders(std::span<const Want> wants, Purse& purse) {
  std::vector<std::size_t> order(wants.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return purse.grant(a) < purse.grant(b); });
  for (const std::size_t at : order) {
    const Want& want = wants[at];
    if (purse.grant(at) < most_of(want) && purse.has(at, want.grain)) purse.give(at, want.grain);
  }
}

}  // namespace

std::vector<std::int64_t> fair_grants(std::span<const Want> wants, std::int64_t budget,
                                      const std::map<DomainId, std::int64_t>& limits) {
  Purse purse(wants, budget, limits);
  for (std::size_t at = 0; at < wants.size(); ++at) {
    purse.give(at, std::min(wants[at].kept, wants[at].held), false);
  }
  give_the_oldest(wants, purse);
  share_the_rest(wants, purse);
  give_the_remainders(wants, purse);
  for (std::size_t at = 0; at < wants.size(); ++at) {
    purse.give(at, wants[at].held - purse.grant(at));
  }
  return purse.grants();
}

}  // namespace kvd::core
