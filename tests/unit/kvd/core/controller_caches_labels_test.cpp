// What routers are told of cached blocks: a follower of the changes knows where each labelled block
// is, and knows of no other block.
#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <map>
#include <set>

#include "tests/support/controller_world.hpp"
#include "tests/unit/kvd/core/placer.hpp"

namespace kvd::test {
namespace {

using Op = CacheBlocks::Op;
using Seeds = std::vector<std::uint32_t>;
using store::Labels;

constexpr store::TierSet kHbm = store::bit(store::CacheTier::kHbm);
constexpr store::TierSet kDram = store::bit(store::CacheTier::kDram);
constexpr store::TierSet kDisk = store::bit(store::CacheTier::kDisk);

core::DiskConfig on_disk() {
  core::DiskConfig config;
  config.name = plain_disk_name;
  config.admission.least = 1;
  return config;
}

std::vector<std::uint32_t> tokens_of(std::uint32_t seed) {
  std::vector<std::uint32_t> tokens(16, seed);
  return tokens;
}

/// A session that labels blocks, and follows their changes.
struct Follower : Placer {
  explicit Follower(ByteNode& on, DomainId domain = DomainId(1)) : Placer(on, domain) {}

  std::optional<Reply> label(const Seeds& seeds, Digest parent = {}) {
    LabelBlocks told{cache, parent, "", {}, {}};
    for (const std::uint32_t seed : seeds) {
      told.digests.push_back(digest(seed));
      const auto tokens = tokens_of(seed);
      told.tokens.insert(told.tokens.end(), tokens.begin(), tokens.end());
    }
    return node.command(id, told);
  }
  static Digest digest(std::uint32_t seed) { return ByteNode::digest(seed); }

  Labels::Changes changes() {
    const auto reply = node.command(id, AskChanges{cache, seen});
    const auto* told = reply ? std::get_if<Labels::Changes>(&reply->body) : nullptr;
    EXPECT_NE(told, nullptr);
    return told != nullptr ? *told : Labels::Changes();
  }
  /// Hears all there is.
  void follow() {
    for (bool more = true; more;) {
      const Labels::Changes told = changes();
      if (told.over) view.clear();
      for (const Labels::Change& each : told.all) {
        view[each.label.digest] = each.tiers;
        if (each.tiers == 0) view.erase(each.label.digest);
      }
      seen = told.next;
      more = told.more;
    }
  }
  [[nodiscard]] store::TierSet where(std::uint32_t seed) const {
    const auto known = view.find(digest(seed));
    return known == view.end() ? 0 : known->second;
  }

  Labels::Cursor seen;
  std::map<Digest, store::TierSet> view;
};

class CachesWithLabels : public testing::Test {
 protected:
  ByteNode node{8, 4, {}, on_disk()};
};

TEST_F(CachesWithLabels, TellWhatCameAndWentInEachTier) {
  Follower a(node), b(node);
  EXPECT_EQ(ByteNode::value(a.label({1, 2})), 2u);
  b.follow();
  EXPECT_TRUE(b.view.empty()) << "nothing is there yet";
  (void)a.store({1, 2, 3});
  node.finish_all();
  b.follow();
  EXPECT_EQ(b.where(1), kDram);
  EXPECT_EQ(b.where(2), kDram);
  EXPECT_EQ(b.where(3), 0u) << "nobody labelled it";
  node.finish_disk();  // the files are opened
  (void)a.store({1, 2});
  node.finish_disk();
  b.follow();
  EXPECT_EQ(b.where(1), kDram | kDisk);
  (void)a.ask(Op::kDrop, {1});
  b.follow();
  EXPECT_EQ(b.where(1), 0u);
  EXPECT_EQ(b.where(2), kDram | kDisk);
  node.feed(ClearCache{});
  b.follow();
  EXPECT_TRUE(b.view.empty());
}

TEST_F(CachesWithLabels, ALabelMayComeLaterAndSaysWhatTheBlockIs) {
  Follower a(node);
  (void)a.store({1, 2});
  node.finish_all();
  (void)a.label({1, 2}, Follower::digest(9));
  const Labels::Changes changes = a.changes();
  EXPECT_TRUE(changes.over);
  EXPECT_FALSE(changes.more);
  ASSERT_EQ(changes.all.size(), 2u);
  EXPECT_EQ(changes.all[0].label.parent, Follower::digest(9));
  EXPECT_EQ(changes.all[1].label.parent, Follower::digest(1));
  EXPECT_EQ(changes.all[1].label.tokens, tokens_of(2));
}

TEST_F(CachesWithLabels, DomainsHearNothingOfEachOther) {
  Follower a(node), other(node, DomainId(2));
  (void)a.label({1});
  (void)a.store({1});
  node.finish_all();
  other.follow();
  EXPECT_TRUE(other.view.empty());
  a.follow();
  EXPECT_EQ(a.where(1), kDram);
}

TEST_F(CachesWithLabels, ALabelThatCannotBeIsRefused) {
  Follower a(node);
  LabelBlocks told{a.cache, {}, "", {Follower::digest(1)}, std::vector<std::uint32_t>(15)};
  EXPECT_EQ(ByteNode::code(node.command(a.id, told)), ErrorCode::kInvalidArgument);
  told.cache = CacheId(77);
  EXPECT_EQ(ByteNode::code(node.command(a.id, told)), ErrorCode::kNotFound);
  EXPECT_EQ(ByteNode::code(node.command(a.id, AskChanges{CacheId(77), {}})), ErrorCode::kNotFound);
}

// Eight rows of the prompt, of 4 tokens each: HBM has them, DRAM gets copies ahead of need.
TEST(RequestsWithLabels, TellOfHbmTooToWhoeverHasTheModelAndTheShape) {
  World world(small_pool(4, 32));
  const EngineId a = world.attach(small_model()), b = world.attach(small_model());
  const auto open = [&](EngineId engine, std::uint32_t tokens = 4) {
    return world.command(engine, OpenCache{{}, {}, 0, Bytes(0), tokens, {}});
  };
  EXPECT_EQ(world.code(open(a, 8)), ErrorCode::kInvalidArgument) << "its blocks have 4 tokens";
  const CacheId of_a(ByteNode::value(open(a))), of_b(ByteNode::value(open(b)));
  const Text text{1, 33, 0};
  ASSERT_EQ(world.submit(a, Submit{RequestId(1), Tokens(33), Tokens(8), {}, {}}, 8, text),
            ErrorCode::kOk);
  LabelBlocks told{of_a, {}, "", {}, std::vector<std::uint32_t>(16, 7)};
  for (std::uint32_t block = 0; block < 4; ++block) told.digests.push_back(text.digest(block));
  EXPECT_EQ(ByteNode::value(world.command(a, told)), 4u);
  const auto changes = [&] {
    const auto reply = world.command(b, AskChanges{of_b, {}});
    return std::get<Labels::Changes>(reply->body).all;
  };
  EXPECT_TRUE(changes().empty()) << "nothing is computed yet";
  world.step_until_granted(a);
  world.run_and_step(a);
  world.finish_copies();
  ASSERT_EQ(changes().size(), 4u);
  for (const Labels::Change& each : changes()) EXPECT_NE(each.tiers & kHbm, 0u);
  told = {of_a, text.digest(3), "", {text.digest(4)}, std::vector<std::uint32_t>(4, 7)};
  EXPECT_EQ(ByteNode::value(world.command(a, told)), 1u);
  ASSERT_EQ(changes().size(), 5u) << "a label may come later";
  EXPECT_NE(changes().back().tiers & kHbm, 0u);
  const auto lookup =
      world.command(a, CacheBlocks{of_a, Op::kLookup, false, 0, {text.digest(0)}, {}});
  EXPECT_EQ(world.code(lookup), ErrorCode::kInvalidArgument);
  ASSERT_EQ(world.code(world.command(a, Abort{RequestId(1)})), ErrorCode::kOk);
  world.engines.at(a).requests.clear();
  while (world.controller->is_behind()) world.feed(Tick{});
  world.feed(ClearCache{});
  world.finish_copies();
  EXPECT_TRUE(changes().empty());
}

/// Engines that store, load, drop and label what they like.
class History {
 public:
  explicit History(std::uint64_t seed) : random_(seed) {
    for (int i = 0; i < 3; ++i) engines_.emplace_back(node_);
    node_.finish_disk();
  }

  void run(int steps) {
    for (int i = 0; i < steps && !testing::Test::HasFailure(); ++i) {
      one(engines_[below(3)]);
      Follower& follower = engines_[below(3)];
      if (below(3) > 0) continue;
      follower.follow();
      check(follower);
    }
  }
  std::size_t there = 0, lost = 0, on_disk_alone = 0;

 private:
  static constexpr std::uint32_t kSeeds = 40;
  std::uint32_t below(std::uint32_t most) { return static_cast<std::uint32_t>(random_() % most); }

  Seeds some() {
    Seeds seeds;
    for (std::uint32_t seed = below(kSeeds); seeds.size() < 4; seed = (seed + 1) % kSeeds) {
      seeds.push_back(seed);
    }
    return seeds;
  }

  void one(Follower& engine) {
    switch (below(10)) {
      case 0:
      case 1:
        labelled(engine, some());
        return;
      case 2:
      case 3:
      case 4:
        // Bytes may not change under a copy.
        node_.finish_all();
        (void)engine.store(some(), below(8) == 0);
        return;
      case 5:
        (void)engine.ask(Op::kLoad, some(), {0, 1, 2, 3});
        return;
      case 6:
        if (!node_.copies.empty()) node_.finish(0, below(8) != 0);
        return;
      case 7:
        node_.disk.fail_reads = node_.disk.fail_writes = 8;
        node_.finish_disk(
            [this](std::size_t most) { return below(static_cast<std::uint32_t>(most)); },
            1 + below(8));
        return;
      case 8:
        (void)engine.ask(Op::kDrop, {below(kSeeds)});
        return;
      default:
        if (below(40) == 0) node_.feed(ClearCache{});
        node_.scrub_all();
    }
  }
  void labelled(Follower& engine, const Seeds& seeds) {
    (void)engine.label(seeds);
    labelled_.insert(seeds.begin(), seeds.end());
  }

  void check(Follower& follower) {
    for (std::uint32_t seed = 0; seed < kSeeds; ++seed) {
      const bool found = follower.leading({seed}) == 1;
      const store::TierSet where = follower.where(seed);
      if (!labelled_.contains(seed)) {
        EXPECT_EQ(where, 0u) << "block " << seed << " is told of without a label";
        continue;
      }
      // A block that has been read counts as found before the other reads of its run have ended and
      // DRAM has it. By then the disk may have lost it.
      const bool may_come = found && where == 0 && node_.disk.under_way() > 0;
      EXPECT_TRUE(may_come || (where != 0) == found) << "block " << seed;
      there += found ? 1u : 0u;
      lost += found ? 0u : 1u;
      on_disk_alone += where == kDisk ? 1u : 0u;
    }
  }

  ByteNode node_{8, 4, {}, on_disk()};
  std::mt19937_64 random_;
  std::deque<Follower> engines_;
  std::set<std::uint32_t> labelled_;
};

TEST(ControllerCaches, RandomHistoriesTellWhatALookupFinds) {
  const char* wanted = std::getenv("KVD_HISTORIES");
  const std::uint64_t histories = wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : 40;
  std::size_t there = 0, lost = 0, on_disk_alone = 0;
  for (std::uint64_t seed = 1; seed <= histories; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    History history(seed);
    history.run(300);
    if (HasFailure()) return;
    there += history.there;
    lost += history.lost;
    on_disk_alone += history.on_disk_alone;
  }
  EXPECT_GT(there, 50 * histories);
  EXPECT_GT(lost, 50 * histories);
  EXPECT_GT(on_disk_alone, 5 * histories);
}

}  // namespace
}  // namespace kvd::test
