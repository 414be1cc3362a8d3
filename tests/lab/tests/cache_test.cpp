// A tier of the prefix store, played against the prompts of a workload.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "kvd/sim/run/inputs.hpp"
#include "tests/lab/cache/replay.hpp"

namespace kvd::sim {
namespace {

using Prompt = std::vector<std::uint64_t>;

class CacheReplay : public testing::Test {
 protected:
  static Workload asking(const std::vector<Prompt>& prompts) {
    Workload workload;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      Arrival arrival;
      arrival.time = Seconds(static_cast<double>(i));
      arrival.prefix = prompts[i];
      workload.push_back(std::move(arrival));
    }
    return workload;
  }
  CacheFigures played(const std::vector<Prompt>& prompts, std::size_t capacity,
                      const char* policy = "lru") {
    return replay(asking(prompts), {.policy = cache_policy(policy).value(), .capacity = capacity},
                  costs);
  }

  const Profile profile = load_profile("gh200-qwen2.5-32b").value();
  BlockCosts costs{profile};
};

TEST_F(CacheReplay, FindsTheLeadingBlocks) {
  const CacheFigures figures = played({{1, 2, 3}, {1, 2, 4}, {1, 2, 3}}, 10);
  EXPECT_EQ(figures.found, 2u + 3u);
  EXPECT_DOUBLE_EQ(figures.saved_s, 2 * (costs.seconds(0) + costs.seconds(1)) + costs.seconds(2));
  EXPECT_EQ(figures.evicted, 0u);
}

TEST_F(CacheReplay, TheLastBlocksOfAChainGoFirst) {
  // The second prompt has room for itself once 3 and 2 are gone; 1 stays.
  EXPECT_EQ(played({{1, 2, 3}, {7, 8}, {1, 2, 3}}, 3).found, 1u);
  EXPECT_EQ(played({{1, 2, 3}, {7, 8}, {1, 2, 3}}, 3).evicted, 2u + 2u);
}

TEST_F(CacheReplay, APromptLargerThanTheTierKeepsItsHead) {
  EXPECT_EQ(played({{1, 2, 3, 4, 5}, {1, 2, 3, 4, 5}}, 3).found, 3u);
}

TEST_F(CacheReplay, IdsThatContradictEachOtherCostOnlyTheirOwnPrompt) {
  EXPECT_EQ(played({{1, 2}, {5, 2, 6}, {1, 2}}, 10).found, 2u);
}

TEST_F(CacheReplay, LaterBlocksCostMore) {
  EXPECT_GT(costs.seconds(0), 0);
  EXPECT_GT(costs.seconds(60), costs.seconds(0) * 1.02) << "attention looks at 30,000 tokens";
  EXPECT_EQ(costs.bytes(), Bytes(std::int64_t{512} * 64 * 4096)) << "64 layers of 4 KiB a token";
}

// A chat of several turns leaves and others come: blocks of the one that left must not outrank
// theirs.
TEST_F(CacheReplay, WhoHasLeftMakesWayForWhoIsThere) {
  std::vector<Prompt> prompts;
  std::uint64_t block = 0;
  for (int chat = 0; chat < 40; ++chat) {
    Prompt prompt;
    for (int turn = 0; turn < 8; ++turn) {
      for (int i = 0; i < 2; ++i) prompt.push_back(++block);
      prompts.push_back(prompt);
    }
  }
  const double lru = static_cast<double>(played(prompts, 40).found);
  EXPECT_GE(static_cast<double>(played(prompts, 40, "default").found), lru);
}

// Thirty seats at which one chat of six turns follows another: 480 blocks are in use at a time.
std::vector<Prompt> chats(std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto share = [&] { return static_cast<double>(random()) / 4294967296.0; };
  std::vector<std::pair<double, Prompt>> turns;
  std::uint64_t block = 0;
  for (int seat = 0; seat < 30; ++seat) {
    for (double time = 6 * share(); time < 90;) {
      Prompt prompt;
      for (int turn = 0; turn < 6; ++turn) {
        while (prompt.size() < 6 + 2 * static_cast<std::size_t>(turn)) prompt.push_back(++block);
        turns.emplace_back(time, prompt);
        time += 0.5 + share();
      }
    }
  }
  std::sort(turns.begin(), turns.end());
  std::vector<Prompt> prompts;
  prompts.reserve(turns.size());
  for (auto& [time, prompt] : turns) prompts.push_back(std::move(prompt));
  return prompts;
}

TEST_F(CacheReplay, ChatsAreFoundAsOftenAsByLruWhateverTheRoom) {
  const std::vector<Prompt> prompts = chats(3);
  const auto asked = static_cast<double>(demand_of(asking(prompts), costs).asked);
  for (const std::size_t room : {240u, 360u, 480u, 600u, 720u}) {
    const double lru = static_cast<double>(played(prompts, room).found) / asked;
    const double ours = static_cast<double>(played(prompts, room, "default").found) / asked;
    EXPECT_GE(ours, lru - 0.02) << room;
    if (room >= 480) {
      EXPECT_GT(ours, 0.7) << room;
    }
  }
}

TEST_F(CacheReplay, AgentsAreFoundAsOftenAsByLruWhateverTheRoom) {
  const auto workload = make_workload(
      "gen:agents", {.seed = 1, .rate = 1, .duration = Seconds(3000), .requests = {}, .cv = {}});
  ASSERT_TRUE(workload.ok());
  const CacheDemand demand = demand_of(*workload, costs);
  const auto found = [&](const char* policy, std::size_t capacity) {
    const CacheSetting setting{cache_policy(policy).value(), capacity};
    return static_cast<double>(replay(*workload, setting, costs).found) /
           static_cast<double>(demand.asked);
  };
  for (const std::size_t percent : {2u, 5u, 10u, 25u}) {
    const std::size_t capacity = demand.distinct * percent / 100;
    EXPECT_GE(found("default", capacity), found("lru", capacity) - 0.02) << percent << " %";
  }
}

// A prompt that many requests share, among so many blocks that nobody asks for again that they fill
// the tier.
TEST_F(CacheReplay, WhatManyPromptsBeginWithOutlivesWhatNobodyAsksForAgain) {
  std::vector<Prompt> prompts;
  std::uint64_t other = 100;
  for (int round = 0; round < 40; ++round) {
    for (int i = 0; i < 3; ++i) prompts.push_back({1, 2, ++other});
    for (int i = 0; i < 12; ++i) prompts.push_back({++other});
  }
  EXPECT_GE(played(prompts, 10, "default").found, played(prompts, 10, "lru").found + 60);
}

// The best that can be done, found by trying everything: which blocks a tier keeps after each use.
struct Best {
  std::uint64_t found = 0;
  double saved_s = 0;
};
Best best_of(const std::vector<std::pair<std::uint64_t, double>>& uses, std::size_t capacity) {
  std::map<std::set<std::uint64_t>, Best> reachable = {{{}, {}}};
  for (const auto& [id, seconds] : uses) {
    std::map<std::set<std::uint64_t>, Best> next;
    const auto reach = [&](const std::set<std::uint64_t>& kept, const Best& so_far) {
      Best& best = next[kept];
      best.found = std::max(best.found, so_far.found);
      best.saved_s = std::max(best.saved_s, so_far.saved_s);
    };
    for (const auto& [kept, so_far] : reachable) {
      Best now = so_far;
      if (kept.contains(id)) now = {so_far.found + 1, so_far.saved_s + seconds};
      reach(kept, now);
      std::set<std::uint64_t> with = kept;
      with.insert(id);
      if (with.size() <= capacity) reach(with, now);
      for (const std::uint64_t out : kept) {
        std::set<std::uint64_t> instead = with;
        instead.erase(out);
        reach(instead, now);
      }
    }
    reachable = std::move(next);
  }
  Best best;
  for (const auto& [kept, so_far] : reachable) {
    best.found = std::max(best.found, so_far.found);
    best.saved_s = std::max(best.saved_s, so_far.saved_s);
  }
  return best;
}

TEST_F(CacheReplay, TheBoundOnBlocksIsTheBestThatCanBeDone) {
  for (std::uint32_t seed = 1; seed <= 60; ++seed) {
    std::mt19937 random(seed);
    std::vector<Prompt> prompts(4 + random() % 4);
    std::vector<std::pair<std::uint64_t, double>> uses;
    for (Prompt& prompt : prompts) {
      std::set<std::uint64_t> ids;
      for (std::size_t i = 0; i < 1 + random() % 3; ++i) ids.insert(random() % 6);
      prompt.assign(ids.begin(), ids.end());
      for (std::size_t i = 0; i < prompt.size(); ++i)
        uses.emplace_back(prompt[i], costs.seconds(i));
    }
    for (const std::size_t capacity : {1u, 2u, 3u}) {
      const Best best = best_of(uses, capacity);
      const CacheFigures bound = cache_bound(asking(prompts), capacity, costs);
      EXPECT_EQ(bound.found, best.found) << "seed " << seed << ", capacity " << capacity;
      EXPECT_GE(bound.saved_s, best.saved_s * (1 - 1e-12))
          << "seed " << seed << ", capacity " << capacity;
    }
  }
}

TEST_F(CacheReplay, NoPolicyDoesBetterThanTheBound) {
  const auto workload = make_workload(
      "gen:chat", {.seed = 3, .rate = {}, .duration = Seconds(400), .requests = {}, .cv = {}});
  ASSERT_TRUE(workload.ok());
  const CacheDemand demand = demand_of(*workload, costs);
  for (const std::size_t percent : {1u, 5u, 25u, 100u}) {
    const std::size_t capacity = std::max<std::size_t>(1, demand.distinct * percent / 100);
    const CacheFigures bound = cache_bound(*workload, capacity, costs);
    EXPECT_LE(bound.found, demand.asked - demand.distinct);
    for (const CachePolicy& policy : cache_policies()) {
      const CacheFigures figures =
          replay(*workload, {.policy = policy.make, .capacity = capacity}, costs);
      EXPECT_LE(figures.found, bound.found) << policy.name << " " << percent << " %";
      EXPECT_LE(figures.saved_s, bound.saved_s) << policy.name << " " << percent << " %";
      if (percent == 100) {
        EXPECT_EQ(figures.found, demand.asked - demand.distinct) << "nothing ever leaves";
      }
    }
  }
}

}  // namespace
}  // namespace kvd::sim
