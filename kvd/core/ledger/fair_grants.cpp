#include "kvd/core/ledger/fair_grants.hpp"

#include <algorithm>
#include <numeric>
#include <set>

namespace kvd::core {

namespace {

using Slabs = std::int64_t;
using Limits = std::map<DomainId, Slabs>;

Slabs limit_of(const Limits& limits, DomainId domain) {
  const auto limit = limits.find(domain);
  return limit == limits.end() ? INT64_MAX : limit->second;
}

/// What has been given out so far, what there is, and what each domain may have.
class Purse {
 public:
  Purse(std::span<const Want> wants, Slabs budget, const Limits& limits)
      : wants_(wants), left_(budget), grants_(wants.size()) {
    bound(limits);
  }
  /// Sets how much each domain may have from now on, including what it has.
  void bound(const Limits& limits) {
    domain_left_.clear();
    for (std::size_t at = 0; at < wants_.size(); ++at) {
      const DomainId domain = wants_[at].domain;
      domain_left_.try_emplace(domain, limit_of(limits, domain)).first->second -= grants_[at];
    }
  }

  /// Gives as much of it as there is, in whole grains where grains are set.
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
  Limits domain_left_;
  std::vector<Slabs> grants_;
};

Slabs most_of(const Want& want) { return std::max(want.wanted, want.kept); }

/// A want is more urgent than one with so many times as much time left. Wants with at most so many
/// seconds left are equally urgent, so parts do not change all the time. kvd design.
constexpr std::int64_t kMoreUrgent = 8;

/// At most one part in so many is held back for what would be used soon, so that a burst does not
/// stop the others for long. kvd design.
constexpr std::int64_t kSoonPart = 4;

/// The first time limit within which a want is due.
std::int64_t due_within(Nanoseconds slack) {
  std::int64_t limit = Nanoseconds(std::chrono::seconds(kMoreUrgent)).count();
  while (limit < slack.count() && limit <= INT64_MAX / kMoreUrgent) limit *= kMoreUrgent;
  return limit;
}

/// Rounds what goes beyond the kept slabs to whole grains.
Slabs in_grains(const Want& want, Slabs used) {
  const Slabs more = std::max<Slabs>(0, used - want.kept);
  return want.kept + (more + want.grain - 1) / want.grain * want.grain;
}

/// What its requests that are due within the limit would use.
Slabs used_within(const Want& want, std::int64_t limit) {
  Slabs used = want.used.empty() ? want.wanted : 0;
  for (const UsedBy& by : want.used) {
    if (due_within(by.slack) <= limit) used = by.wanted;
  }
  return std::min(in_grains(want, used), most_of(want));
}

/// What the want at `at` gains if everyone who wants that much gets `level`.
Slabs gain(const Purse& purse, Slabs wanted, std::size_t at, Slabs level) {
  return std::max<Slabs>(0, std::min(level, wanted) - purse.grant(at));
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

/// What its first request takes to run.
Slabs least_of(const Want& want) {
  const Slabs least = want.slack ? want.least : 0;
  return (least + want.grain - 1) / want.grain * want.grain;
}

/// All wants of a domain, taken as one.
struct Together {
  Slabs held = 0, kept = 0, wanted = 0, soon = 0;
  Slabs to_run = INT64_MAX;  ///< slabs that let one of its requests run; INT64_MAX: none asks to
  Slabs share = 0;
};

std::map<DomainId, Together> by_domain(std::span<const Want> wants, const std::vector<Slabs>& soon,
                                       const Limits& limits) {
  std::map<DomainId, Together> domains;
  for (std::size_t at = 0; at < wants.size(); ++at) {
    const Want& want = wants[at];
    Together& domain = domains[want.domain];
    domain.held += want.held;
    domain.kept += std::min(want.kept, want.held);
    const Slabs most = std::max(most_of(want), least_of(want));
    domain.wanted += most;
    domain.soon += std::max<Slabs>(0, soon[at] - most);
  }
  for (const Want& want : wants) {
    Together& domain = domains[want.domain];
    const Slabs beside = domain.kept - std::min(want.kept, want.held);
    if (least_of(want) > 0) domain.to_run = std::min(domain.to_run, beside + least_of(want));
  }
  for (auto& [id, domain] : domains) {
    domain.wanted = std::max(domain.kept, std::min(domain.wanted, limit_of(limits, id)));
  }
  return domains;
}

/// Gives each domain as much as the others, beyond what it keeps and up to what it wants.
void level_shares(std::map<DomainId, Together>& domains, Slabs budget) {
  Slabs most = 0;
  for (const auto& [id, domain] : domains) most = std::max(most, domain.wanted);
  const auto at = [](const Together& domain, Slabs level) {
    return std::clamp(level, domain.kept, domain.wanted);
  };
  const Slabs level = highest_level(most, budget, [&](Slabs each) {
    Slabs sum = 0;
    for (const auto& [id, domain] : domains) sum += at(domain, each);
    return sum;
  });
  for (auto& [id, domain] : domains) domain.share = at(domain, level);
}

/// What each domain may have of the budget.
Limits shares_between(std::span<const Want> wants, const std::vector<Slabs>& soon, Slabs budget,
                      const Limits& limits) {
  std::map<DomainId, Together> domains = by_domain(wants, soon, limits);
  level_shares(domains, budget);
  const auto runs = [](const auto& entry) { return entry.second.to_run <= entry.second.share; };
  Slabs kept = 0;
  for (const auto& [id, domain] : domains) kept += domain.kept;
  Together* first = nullptr;
  if (std::none_of(domains.begin(), domains.end(), runs)) {
    for (auto& [id, domain] : domains) {
      const bool could =
          domain.to_run <= std::min(limit_of(limits, id), budget - kept + domain.kept);
      if (could && (first == nullptr || domain.held > first->held)) first = &domain;
    }
  }
  if (first != nullptr) {
    first->kept = first->wanted = first->to_run;
    level_shares(domains, budget);
  }
  Limits shares;
  Slabs left = budget;
  for (const auto& [id, domain] : domains) left -= domain.share;
  for (const auto& [id, domain] : domains) {
    const Slabs most = std::min(left, limit_of(limits, id) - domain.share);
    const Slabs more = std::max<Slabs>(0, std::min(most, domain.soon));
    shares[id] = domain.share + more;
    left -= more;
  }
  return shares;
}

void give_the_first(std::span<const Want> wants, Purse& purse) {
  std::vector<std::size_t> order(wants.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return wants[a].slack < wants[b].slack; });
  for (const std::size_t at : order) {
    const Want& want = wants[at];
    const Slabs missing = want.least - purse.grant(at);
    if (!want.slack || missing <= 0) continue;
    const Slabs grains = (missing + want.grain - 1) / want.grain * want.grain;
    if (purse.has(at, grains)) purse.give(at, grains);
  }
}

/// Gives each what `wanted` says, as far as there is enough.
void share(std::span<const Want> wants, const std::vector<Slabs>& wanted, Purse& purse) {
  const Slabs most = wanted.empty() ? 0 : *std::max_element(wanted.begin(), wanted.end());
  std::map<DomainId, Slabs> rooms;
  for (const Want& want : wants) {
    rooms[want.domain] = purse.left_of(want.domain);
  }
  const auto cost_in = [&](DomainId domain, Slabs level) {
    Slabs sum = 0;
    for (std::size_t at = 0; at < wants.size(); ++at) {
      if (wants[at].domain == domain) sum += gain(purse, wanted[at], at, level);
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
      if (wants[at].domain == domain) gains[at] = gain(purse, wanted[at], at, own);
    }
  }
  for (std::size_t at = 0; at < wants.size(); ++at) purse.give(at, gains[at]);
}

/// What each would have with what it uses soon. All of that together is at most a part of the
/// budget.
std::vector<Slabs> with_soon(std::span<const Want> wants, Slabs budget) {
  Slabs left = budget / kSoonPart;
  std::vector<Slabs> out;
  for (const Want& want : wants) {
    const Slabs now = want.soon ? used_within(want, due_within(want.soon->slack)) : 0;
    Slabs more = std::min(left, want.soon ? in_grains(want, want.soon->wanted) - now : 0);
    more = std::max<Slabs>(0, more - more % want.grain);
    left -= more;
    out.push_back(now + more);
  }
  return out;
}

/// Serves the urgent before the patient, and finally everyone.
void share_by_urgency(std::span<const Want> wants, const std::vector<Slabs>& soon, Purse& purse) {
  std::set<std::int64_t> limits{INT64_MAX};
  for (const Want& want : wants) {
    for (const UsedBy& by : want.used) limits.insert(due_within(by.slack));
    if (want.soon) limits.insert(due_within(want.soon->slack));
  }
  std::vector<Slabs> wanted(wants.size());
  for (const std::int64_t limit : limits) {
    for (std::size_t at = 0; at < wants.size(); ++at) {
      wanted[at] = limit == INT64_MAX ? most_of(wants[at]) : used_within(wants[at], limit);
    }
    share(wants, wanted, purse);
    for (std::size_t at = 0; at < wants.size(); ++at) {
      const Want& want = wants[at];
      const bool counts = want.soon && due_within(want.soon->slack) <= limit;
      if (counts) wanted[at] = std::max(wanted[at], soon[at]);
    }
    share(wants, wanted, purse);
  }
}

/// Gives out the grains that rounding left, the smallest grants first.
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
  const std::vector<Slabs> soon = with_soon(wants, budget);
  Purse purse(wants, budget, shares_between(wants, soon, budget, limits));
  for (std::size_t at = 0; at < wants.size(); ++at) {
    purse.give(at, std::min(wants[at].kept, wants[at].held), false);
  }
  give_the_first(wants, purse);
  share_by_urgency(wants, soon, purse);
  purse.bound(limits);
  give_the_remainders(wants, purse);
  for (std::size_t at = 0; at < wants.size(); ++at) {
    purse.give(at, wants[at].held - purse.grant(at));
  }
  return purse.grants();
}

}  // namespace kvd::core
