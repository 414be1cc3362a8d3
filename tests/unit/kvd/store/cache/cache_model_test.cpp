// Random histories of a cache against one that is written as simply as it can be.
#include <gtest/gtest.h>

#include <list>
#include <random>
#include <set>

#include "tests/unit/kvd/store/cache/cache_fixture.hpp"

namespace kvd::store {
namespace {

/// Requests that come, share, compute, are copied, leave HBM, end; and evictions, against a model
/// that knows of each path of blocks who names it and which tiers have it.
class CacheHistories : public CacheTest {
 protected:
  using Path = std::vector<std::uint64_t>;
  struct Known {
    std::set<const BlockTable*> owners;
    std::array<bool, kTiers> in{};
    BlockId first{};  ///< of its blocks
  };
  struct Request {
    BlockTable table{kGroups};
    Path path;                ///< of its blocks
    std::uint32_t named = 0;  ///< how many leading ones are known by their key
  };
  std::map<Path, Known> naive;
  std::list<Request> requests;
  std::mt19937_64 random{
      static_cast<std::uint64_t>(::testing::UnitTest::GetInstance()->random_seed())};

  std::size_t any(std::size_t count) { return static_cast<std::size_t>(random() % count); }
  static Path head(const Path& path, std::size_t blocks) {
    return {path.begin(), path.begin() + static_cast<std::ptrdiff_t>(blocks)};
  }
  static std::vector<Digest> chain_of(const Path& path) {
    std::vector<Digest> chain;
    for (const std::uint64_t block : path) chain.push_back(digest(block));
    return chain;
  }
  Request& any_request() {
    return *std::next(requests.begin(), static_cast<long>(any(requests.size())));
  }
  bool has_room(std::uint32_t rows) const {
    const auto free = [&](Tier tier) { return tiers.pool(tier).available(kA); };
    return free(Tier::kHbm) >= kRow * rows && free(Tier::kDram) >= kRow * rows;
  }

  void come() {
    if (requests.size() > 3 || !has_room(4)) return;
    Request& one = requests.emplace_back();
    std::uint64_t block = 0;
    for (std::size_t length = 1 + any(4); one.path.size() < length;) {
      block = block * 2 + 1 + any(2);
      one.path.push_back(block);
    }
    std::uint32_t found = 0;
    for (; found < one.path.size(); ++found) {
      const auto known = naive.find(head(one.path, found + 1));
      if (known == naive.end() || (!known->second.in[0] && !known->second.in[1])) break;
      known->second.owners.insert(&one.table);
    }
    ASSERT_EQ(sut.share(one.table, space_of(1), chain_of(one.path)), found);
    compute(one.table, static_cast<std::uint32_t>(one.path.size()) - found);
    const std::vector<Digest> chain = chain_of(one.path);
    one.named = found;
    for (std::uint32_t i = found; i < one.path.size(); ++i) {
      const bool is_new = one.named == i && !naive.contains(head(one.path, i + 1));
      const auto named = sut.name(one.table, {space_of(1), i, chain[i], kSaved});
      ASSERT_TRUE(named.ok());
      ASSERT_EQ(*named, is_new);
      if (!is_new) continue;
      ++one.named;
      naive[head(one.path, i + 1)] = {{&one.table}, {true, false}, one.table[i * kGroups]};
    }
  }
  void end_one() {
    if (requests.empty()) return;
    Request& one = any_request();
    const auto kept = static_cast<std::uint32_t>(any(one.path.size() + 1));
    for (std::uint32_t i = kept; i < one.named; ++i) {
      Known& known = naive.at(head(one.path, i + 1));
      known.owners.erase(&one.table);
      if (known.owners.empty() && !known.in[0] && !known.in[1]) naive.erase(head(one.path, i + 1));
    }
    truncate(one.table, kept);
    one.path.resize(kept);
    one.named = std::min(one.named, kept);
    if (kept == 0) requests.remove_if([&](const Request& each) { return &each == &one; });
  }
  /// A block, of all groups or of one, is copied to DRAM or leaves HBM.
  void move() {
    if (requests.empty()) return;
    Request& one = any_request();
    const auto block = static_cast<std::uint32_t>(any(one.path.size()));
    const std::uint32_t groups = any(3) == 0 ? 1 : kGroups;
    for (std::uint32_t i = block * kGroups; i < block * kGroups + groups; ++i) {
      const bool in_hbm = blocks.has(one.table, i, Tier::kHbm);
      const bool in_dram = blocks.has(one.table, i, Tier::kDram);
      if (!in_dram && has_room(1)) {
        blocks.place(one.table, i, Tier::kDram, taken_in_dram(1)[0]);
        blocks.settle(one.table, i, Tier::kDram, true);
      } else if (in_dram && in_hbm) {
        tiers.free(Tier::kHbm, {blocks.vacate(one.table, i, Tier::kHbm)});
      }
    }
    if (block >= one.named) return;
    for (const Tier tier : {Tier::kHbm, Tier::kDram}) {
      bool whole = true;
      for (std::uint32_t i = block * kGroups; i < (block + 1) * kGroups; ++i) {
        whole = whole && blocks.has(one.table, i, tier);
      }
      naive.at(head(one.path, block + 1)).in[static_cast<std::size_t>(tier)] = whole;
    }
  }
  bool has_child_in(const Path& path, std::size_t tier) const {
    return std::any_of(naive.begin(), naive.end(), [&](const auto& other) {
      return other.first.size() == path.size() + 1 && head(other.first, path.size()) == path &&
             other.second.in[tier];
    });
  }
  /// The row that the policy chooses leaves. It is one that nobody names and that no row follows.
  void evict_one() {
    const std::size_t tier = any(kTiers);
    std::map<SlotId, Path> may_leave;
    for (const auto& [path, known] : naive) {
      if (!known.owners.empty() || !known.in[tier] || has_child_in(path, tier)) continue;
      may_leave[blocks.block(known.first).at[tier]] = path;
    }
    const std::vector<SlotId> slots = sut.evict(kA, static_cast<Tier>(tier), Bytes(1));
    tiers.free(static_cast<Tier>(tier), slots);
    ASSERT_EQ(slots.size(), may_leave.empty() ? 0u : kGroups);
    if (slots.empty()) return;
    const auto left = may_leave.find(slots[0]);
    ASSERT_NE(left, may_leave.end()) << "what was evicted is none that may be";
    Known& known = naive.at(left->second);
    known.in[tier] = false;
    if (!known.in[0] && !known.in[1]) naive.erase(left->second);
  }
  void compare() {
    std::array<Bytes, kTiers> cached{};
    for (const auto& [path, known] : naive) {
      for (std::size_t tier = 0; tier < kTiers; ++tier) {
        if (known.owners.empty() && known.in[tier]) cached[tier] += kRow;
      }
    }
    for (const Tier tier : {Tier::kHbm, Tier::kDram}) {
      ASSERT_EQ(sut.evictable(kA, tier), cached[static_cast<std::size_t>(tier)]);
    }
    for (const Request& each : requests) ASSERT_EQ(blocks.validate(each.table), "");
    ASSERT_EQ(fault(), "");
  }
};

TEST_F(CacheHistories, AgreeWithTheNaiveCache) {
  SCOPED_TRACE("seed " + std::to_string(::testing::UnitTest::GetInstance()->random_seed()));
  for (int round = 0; round < 3000 && !HasFatalFailure(); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    switch (any(5)) {
      case 0:
      case 1:
        come();
        break;
      case 2:
        end_one();
        break;
      case 3:
        move();
        break;
      default:
        evict_one();
    }
    if (!HasFatalFailure()) compare();
  }
  for (Request& each : requests) truncate(each.table);
}

}  // namespace
}  // namespace kvd::store
