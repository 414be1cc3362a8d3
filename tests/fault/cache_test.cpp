// What other caches were seen to do when one of their processes dies: blocks that are said to be
// there and are not, calls that block, everything forgotten, stores that were acknowledged and
// lost.
#include <gtest/gtest.h>

#include <csignal>

#include "ipc/vocabulary/clock.hpp"
#include "tests/support/patience.hpp"
#include "tests/support/store_node.hpp"

namespace kvd::test {
namespace {

using bench::StoreNode;

constexpr std::uint64_t kBlocks = 120;
constexpr std::uint64_t kTokens = kBlocks * StoreNode::kBlockTokens + 1;

KvdSettings on_disk(const RuntimeFolder& disk) {
  KvdSettings settings;
  settings.extra =
      "[disk]\npath = '" + disk.path() + "'\nsize = '32MiB'\nfloor = '1MiB'\ntouches = 1\n";
  return settings;
}

double stored(const StoreNode& node) {
  return node.daemon().metric("kvd_disk_blocks_total{direction=\"store\"}").value_or(0);
}

TEST(CacheFaults, WhatWasStoredIsFoundAfterAKill) {
  const RuntimeFolder disk;
  StoreNode node(on_disk(disk));
  EXPECT_EQ(node.run(1, kTokens), 0u);
  ASSERT_TRUE(poll_until([&] { return stored(node) >= kBlocks; })) << node.daemon().log();
  for (int kill = 0; kill < 3; ++kill) {
    node.kill();
    node.start();
    node.attach_again();
    EXPECT_EQ(node.run(1, kTokens), kTokens - 1) << "and every byte of it is right";
  }
}

TEST(CacheFaults, WhatAKilledKvdHadInMemoryIsNotSaidToBeThere) {
  StoreNode node{test::KvdSettings{}};
  EXPECT_EQ(node.run(1, kTokens), 0u);
  EXPECT_EQ(node.run(1, kTokens), kTokens - 1);
  node.kill();
  node.start();
  node.attach_again();
  EXPECT_EQ(node.run(1, kTokens), 0u);
  EXPECT_EQ(node.run(1, kTokens), kTokens - 1);
}

TEST(CacheFaults, ACallToADeadKvdEndsLongBeforeItsDeadline) {
  StoreNode node{test::KvdSettings{}};
  EXPECT_EQ(node.run(1, kTokens), 0u);
  node.kill();
  const SteadyClock clock;
  const TimePoint begin = clock.now();
  const auto step = node.client().step({}, 0, 0, kPatience);
  ASSERT_FALSE(step.ok());
  EXPECT_EQ(step.error().code, kvd_client::ErrorCode::kUnavailable) << step.error().message;
  EXPECT_LT(clock.now() - begin, kPatience / 6);
}

TEST(CacheFaults, ACallToAStoppedKvdEndsByItsDeadline) {
  StoreNode node{test::KvdSettings{}};
  EXPECT_EQ(node.run(1, kTokens), 0u);
  node.daemon().signal(SIGSTOP);
  const SteadyClock clock;
  const TimePoint begin = clock.now();
  const auto step = node.client().step({}, 0, 0, std::chrono::milliseconds(300));
  node.daemon().signal(SIGCONT);
  EXPECT_FALSE(step.ok());
  EXPECT_LT(clock.now() - begin, kPatience / 6);
}

}  // namespace
}  // namespace kvd::test
