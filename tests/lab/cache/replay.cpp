#include "tests/lab/cache/replay.hpp"

#include <cstring>
#include <unordered_set>

namespace kvd::sim {
namespace {

using store::CacheTier;
using store::EntryId;

constexpr CacheTier kTier = CacheTier::kDram;

Digest digest_of(std::uint64_t id) {
  Digest digest{};
  std::memcpy(digest.bytes.data(), &id, sizeof id);
  return digest;
}

store::Index::Config config_of(const CacheSetting& setting) {
  store::Index::Config config;
  config.policy = setting.policy;
  return config;
}

/// The index, and the places of a tier.
class Cache {
 public:
  Cache(const CacheSetting& setting, BlockCosts& costs)
      : index_(config_of(setting)),
        space_(index_.open({})),
        costs_(costs),
        capacity_(setting.capacity) {}

  void ask(const Arrival& arrival) {
    chain_.clear();
    for (const std::uint64_t id : arrival.prefix) chain_.push_back(digest_of(id));
    std::vector<EntryId> leased = index_.lookup(space_, chain_).blocks;
    figures_.found += leased.size();
    for (std::size_t i = 0; i < leased.size(); ++i) figures_.saved_s += costs_.seconds(i);
    for (std::size_t i = leased.size(); i < chain_.size(); ++i) {
      if (!keep(leased, i)) break;
    }
    index_.release(leased);
  }
  [[nodiscard]] const CacheFigures& figures() const { return figures_; }

 private:
  /// False: there is no room for the block, and so for none after it.
  bool keep(std::vector<EntryId>& leased, std::size_t i) {
    const EntryId parent = leased.empty() ? EntryId() : leased.back();
    const double saved = costs_.seconds(i) / static_cast<double>(costs_.bytes().value);
    const auto made = index_.insert({space_, parent, chain_[i], {saved}});
    if (!made.ok()) return false;  // a trace whose ids contradict each other
    leased.push_back(*made);
    const store::Place place = room();
    if (!place) return false;
    if (!index_.place(*made, kTier, place)) free_.push_back(place);
    return true;
  }
  /// None: everything in the tier is leased.
  store::Place room() {
    if (!free_.empty()) {
      const store::Place place = free_.back();
      free_.pop_back();
      return place;
    }
    if (used_ < capacity_) return store::Place(static_cast<std::uint32_t>(++used_));
    const EntryId victim = index_.victim(kTier);
    if (!victim) return {};
    ++figures_.evicted;
    return index_.forget(victim, kTier);
  }

  store::Index index_;
  store::SpaceId space_;
  BlockCosts& costs_;
  std::size_t capacity_;
  std::size_t used_ = 0;
  std::vector<store::Place> free_;
  std::vector<Digest> chain_;
  CacheFigures figures_;
};

}  // namespace

double BlockCosts::seconds(std::size_t position) {
  // With this many other tokens beside it, a block's share of reading the weights is nothing.
  constexpr std::int64_t kOthers = 8192;
  const auto tokens = kPrefixTokens.value;
  while (known_.size() <= position) {
    const auto before = static_cast<double>(tokens) * static_cast<double>(known_.size());
    const auto own = static_cast<double>(tokens);
    const Seconds with = iteration_time(
        profile_, {.prompt_tokens = kOthers + tokens, .prompt_pairs = own * (before + own / 2)});
    known_.push_back((with - iteration_time(profile_, {.prompt_tokens = kOthers})).count());
  }
  return known_[position];
}

Bytes BlockCosts::bytes() const {
  const core::ModelClass& shape = profile_.shape;
  return shape.bytes_per_token_per_layer * std::int64_t{shape.layers} * kPrefixTokens.value;
}

CacheDemand demand_of(const Workload& workload, BlockCosts& costs) {
  CacheDemand demand;
  std::unordered_set<std::uint64_t> distinct;
  for (const Arrival& arrival : workload) {
    ++demand.requests;
    demand.asked += arrival.prefix.size();
    for (std::size_t i = 0; i < arrival.prefix.size(); ++i) demand.asked_s += costs.seconds(i);
    distinct.insert(arrival.prefix.begin(), arrival.prefix.end());
  }
  demand.distinct = distinct.size();
  return demand;
}

CacheFigures replay(const Workload& workload, const CacheSetting& setting, BlockCosts& costs,
                    const ReplayProgress& progress) {
  Cache cache(setting, costs);
  for (std::size_t i = 0; i < workload.size(); ++i) {
    cache.ask(workload[i]);
    if (progress && i % 256 == 0) {
      progress(static_cast<double>(i) / static_cast<double>(workload.size()));
    }
  }
  return cache.figures();
}

}  // namespace kvd::sim
