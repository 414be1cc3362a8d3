// Random histories of an index against one that is written as simply as it can be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>

#include "kvd/store/index/index.hpp"
#include "tests/unit/kvd/store/index/index_fixture.hpp"

namespace kvd::store {
namespace {

/// A block is identified by its space and its path from the first block.
using Path = std::pair<SpaceId, std::vector<std::uint64_t>>;

struct NaiveBlock {
  std::array<Place, kCacheTiers> at{};
  int leases = 0;
  std::uint64_t last_touch = 0;
};

class NaiveIndex {
 public:
  std::map<Path, NaiveBlock> blocks;

  [[nodiscard]] bool may_leave(const Path& path, std::size_t tier) const {
    const NaiveBlock& block = blocks.at(path);
    if (!block.at[tier] || block.leases > 0) return false;
    for (const auto& [other, child] : blocks) {
      if (is_child(other, path) && child.at[tier]) return false;
    }
    return true;
  }
  [[nodiscard]] std::optional<Path> least_recent(std::size_t tier) const {
    std::optional<Path> found;
    for (const auto& [path, block] : blocks) {
      if (!may_leave(path, tier)) continue;
      if (!found || block.last_touch < blocks.at(*found).last_touch) found = path;
    }
    return found;
  }
  void erase_unused(Path path) {
    while (!path.second.empty()) {
      const NaiveBlock& block = blocks.at(path);
      const bool parent = std::any_of(blocks.begin(), blocks.end(), [&](const auto& other) {
        return is_child(other.first, path);
      });
      if (parent || block.leases > 0 || block.at != decltype(block.at){}) return;
      blocks.erase(path);
      path.second.pop_back();
    }
  }

 private:
  static bool is_child(const Path& child, const Path& parent) {
    return child.first == parent.first && child.second.size() == parent.second.size() + 1 &&
           std::equal(parent.second.begin(), parent.second.end(), child.second.begin());
  }
};

/// Both, driven the same way.
class Histories : public ::testing::TestWithParam<EvictionKind> {
 protected:
  Index sut{{.secret = {1, 2, 3, 4}, .eviction = GetParam()}};
  NaiveIndex naive;
  std::mt19937_64 random{
      static_cast<std::uint64_t>(::testing::UnitTest::GetInstance()->random_seed())};
  std::array<SpaceId, 2> spaces = {sut.open(space_of(1)), sut.open(space_of(2))};
  struct Lease {
    EntryId id;
    Path path;
  };
  std::vector<std::vector<Lease>> leases;
  std::map<EntryId, Path> paths;
  std::uint32_t places = 0;
  std::uint64_t touches = 0;

  std::size_t any(std::size_t count) { return static_cast<std::size_t>(random() % count); }
  CacheTier any_tier() { return static_cast<CacheTier>(any(kCacheTiers)); }

  /// A chain out of few, so that they meet: which number a block has says all before it.
  Path any_path() {
    Path path{spaces[any(2)], {}};
    std::uint64_t block = 0;
    for (std::size_t length = 1 + any(8); path.second.size() < length;) {
      block = block * 2 + 1 + any(2);
      path.second.push_back(block);
    }
    return path;
  }
  static std::vector<Digest> chain_of(const Path& path) {
    std::vector<Digest> chain;
    for (const std::uint64_t block : path.second) chain.push_back(digest(block));
    return chain;
  }
  static Path prefix(const Path& path, std::size_t blocks) {
    return {path.first, {path.second.begin(), path.second.begin() + static_cast<long>(blocks)}};
  }

  void store() {
    const Path path = any_path();
    const CacheTier tier = any_tier();
    std::vector<Lease> mine;
    for (std::size_t i = 1; i <= path.second.size(); ++i) {
      const EntryId parent = mine.empty() ? EntryId() : mine.back().id;
      const Path here = prefix(path, i);
      const auto id = sut.insert({path.first, parent, digest(path.second[i - 1]), kSaved});
      ASSERT_TRUE(id.ok());
      NaiveBlock& block = naive.blocks[here];
      ++block.leases;
      block.last_touch = ++touches;
      const Place place(++places);
      const bool taken = sut.place(*id, tier, place);
      ASSERT_EQ(taken, !block.at[index(tier)]);
      if (taken) {
        block.at[index(tier)] = place;
        block.last_touch = ++touches;
      }
      paths[*id] = here;
      mine.push_back({*id, here});
    }
    leases.push_back(std::move(mine));
  }
  void look_up() {
    const Path path = any_path();
    const Hit hit = sut.lookup(path.first, chain_of(path));
    std::vector<Lease> mine;
    std::vector<store::Run> runs;
    for (std::size_t i = 1; i <= path.second.size(); ++i) {
      const auto block = naive.blocks.find(prefix(path, i));
      if (block == naive.blocks.end()) break;
      const auto& at = block->second.at;
      const auto place = std::find_if(at.begin(), at.end(), [](Place p) { return bool(p); });
      if (place == at.end()) break;
      const auto tier = static_cast<CacheTier>(place - at.begin());
      if (runs.empty() || runs.back().tier != tier) runs.push_back({tier, 0});
      ++runs.back().blocks;
      ++block->second.leases;
      ASSERT_LT(mine.size(), hit.blocks.size());
      ASSERT_EQ(paths[hit.blocks[mine.size()]], block->first);
      mine.push_back({hit.blocks[mine.size()], block->first});
    }
    ASSERT_EQ(hit.blocks.size(), mine.size());
    ASSERT_EQ(hit.runs, runs);
    for (auto lease = mine.rbegin(); lease != mine.rend(); ++lease) {
      naive.blocks[lease->path].last_touch = ++touches;
    }
    leases.push_back(std::move(mine));
  }
  void release() {
    if (leases.empty()) return;
    std::swap(leases[any(leases.size())], leases.back());
    std::vector<EntryId> ids;
    for (const Lease& lease : leases.back()) ids.push_back(lease.id);
    sut.release(ids);
    for (auto lease = leases.back().rbegin(); lease != leases.back().rend(); ++lease) {
      --naive.blocks.at(lease->path).leases;
      naive.erase_unused(lease->path);
    }
    leases.pop_back();
  }
  void forget(EntryId id, CacheTier tier) {
    const Path path = paths.at(id);
    ASSERT_EQ(sut.forget(id, tier), naive.blocks.at(path).at[index(tier)]);
    naive.blocks.at(path).at[index(tier)] = {};
    naive.erase_unused(path);
  }
  void evict() {
    const CacheTier tier = any_tier();
    const EntryId id = sut.victim(tier);
    const auto expected = naive.least_recent(index(tier));
    ASSERT_EQ(bool(id), expected.has_value());
    if (!id) return;
    ASSERT_TRUE(naive.may_leave(paths.at(id), index(tier)));
    if (GetParam() == EvictionKind::kLru) {
      ASSERT_EQ(paths.at(id), *expected);
    }
    forget(id, tier);
  }
  void lose() {
    for (const auto& named : naive.blocks) {
      const CacheTier tier = any_tier();
      if (!named.second.at[index(tier)] || any(8) != 0) continue;
      const auto id = std::find_if(paths.begin(), paths.end(), [&](const auto& known) {
        return known.second == named.first && sut.at(known.first).in(tier);
      });
      return forget(id->first, tier);
    }
  }
  void drop_old_names() {
    std::erase_if(paths, [&](const auto& known) { return !naive.blocks.contains(known.second); });
  }
};

TEST_P(Histories, AgreeWithTheNaiveIndex) {
  SCOPED_TRACE("seed " + std::to_string(::testing::UnitTest::GetInstance()->random_seed()));
  for (int round = 0; round < 3000 && !HasFatalFailure(); ++round) {
    switch (any(6)) {
      case 0:
        store();
        break;
      case 1:
        look_up();
        break;
      case 2:
        if (any(4) == 0) lose();
        break;
      case 3:
        evict();
        break;
      default:
        release();
    }
    drop_old_names();
    ASSERT_EQ(sut.validate(), "") << "round " << round;
    ASSERT_EQ(sut.size(), naive.blocks.size()) << "round " << round;
  }
  while (!leases.empty()) release();
  for (const SpaceId space : spaces) (void)sut.close(space);
  EXPECT_EQ(sut.size(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Index, Histories, ::testing::ValuesIn(kEvictionKinds),
                         [](const auto& kind) { return std::string(name(kind.param)); });

}  // namespace
}  // namespace kvd::store
