// kvd is killed, and another one finds what it had cached in DRAM and in HBM: descriptors and
// records outlive it, in what imitates systemd's store or in kvd-holder.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <sstream>
#include <thread>
#include <vector>

#include "tests/fault/adopting.hpp"
#include "tests/support/patience.hpp"
#include "tests/support/store_node.hpp"

namespace kvd::test {
namespace {

using bench::StoreNode;

constexpr std::uint64_t kBlocks = 120;
constexpr std::uint64_t kTokens = kBlocks * StoreNode::kBlockTokens + 1;

class Adopting : public AdoptingWorld {
 protected:
  [[nodiscard]] std::uint64_t run(std::uint32_t prompt) {
    return AdoptingWorld::run(prompt, kTokens);
  }

  /// kvd is killed at any time while an engine works: everything that was written down is there,
  /// nothing more, and no byte is wrong.
  void kill_under_load();
};

TEST_F(Adopting, WhatDramCachedIsFoundAfterAKill) {
  start();
  EXPECT_EQ(run(1), 0u);
  ASSERT_TRUE(written(kBlocks)) << records() << kvd_->log();
  for (int i = 0; i < 3; ++i) {
    kill();
    start();
    EXPECT_EQ(kept(Tier::kDram), double{kBlocks}) << kvd_->log();
    EXPECT_EQ(metric("kvd_kept_bytes{tier=\"dram\"}"), double{kBlocks << 14});
    EXPECT_EQ(kept(Tier::kHbm), 0.0) << "what DRAM has needs no second record";
    EXPECT_EQ(run(1), kTokens - 1) << "and every byte of it is right";
    ASSERT_TRUE(written(kBlocks));
  }
  EXPECT_TRUE(poll_until([&] { return store_.size() == 25; }))
      << store_.size() << ", not 16 and 8 slabs and what is written down";
}

TEST_F(Adopting, AnAlteredByteIsAMissAndSoIsWhatFollows) {
  start();
  EXPECT_EQ(run(1), 0u);
  ASSERT_TRUE(written(kBlocks));
  kill();
  ASSERT_NO_FATAL_FAILURE(alter(70));
  start();
  EXPECT_EQ(kept(), 70.0);
  EXPECT_EQ(dropped("altered"), 1.0);
  EXPECT_EQ(dropped("parent"), double{kBlocks - 71});
  EXPECT_EQ(run(1), 70 * StoreNode::kBlockTokens);
}

TEST_F(Adopting, ARecordThatIsHalfWrittenIsAMiss) {
  start();
  EXPECT_EQ(run(1), 0u);
  ASSERT_TRUE(written(kBlocks));
  kill();
  const UniqueFd state = store_.find("kvd-state");
  const Records records(state);
  ++records.numbered(50)->place.slot;
  start();
  EXPECT_EQ(kept(), 50.0);
  EXPECT_EQ(dropped("torn"), 1.0);
  EXPECT_EQ(run(1), 50 * StoreNode::kBlockTokens);
}

TEST_F(Adopting, WhatWasClearedStaysGone) {
  start();
  EXPECT_EQ(run(1), 0u);
  ASSERT_TRUE(written(kBlocks));
  EXPECT_EQ(kvd_->clear_cache().status, 200);
  ASSERT_TRUE(poll_until([&] { return records() == 0; }));
  kill();
  start();
  EXPECT_EQ(kept(), 0.0);
  EXPECT_EQ(run(1), 0u);
}

TEST_F(Adopting, AnotherConfigurationLeavesWhatDoesNotFitBehindAndSaysSo) {
  start();
  EXPECT_EQ(run(1), 0u);
  ASSERT_TRUE(written(kBlocks));
  kill();
  settings_.slab = "4MiB";
  start();
  EXPECT_EQ(kept(), 0.0);
  EXPECT_NE(kvd_->log().find("pool.slab was 2097152 bytes"), std::string::npos) << kvd_->log();
  EXPECT_EQ(run(1), 0u);
  EXPECT_TRUE(poll_until([&] { return store_.size() == 13; })) << store_.size();
  ASSERT_TRUE(written(kBlocks));
  kill();
  settings_.dram = "4MiB";
  start();
  EXPECT_GT(dropped("misfit") + kept(), 0.0) << kvd_->log();
  (void)run(1);  // what it finds is right
}

TEST_F(Adopting, NothingOutlivesAKvdThatIsToldSo) {
  settings_.extra += "[restart]\nkeep = 'never'\n";
  start();
  EXPECT_EQ(run(1), 0u);
  kill();
  EXPECT_EQ(store_.size(), 0u);
  start();
  EXPECT_EQ(run(1), 0u);
}

// ---- what HBM alone has ----

class AdoptingHbm : public Adopting {
 protected:
  AdoptingHbm() { settings_.extra += "[rotation]\neager = false\n"; }

  /// A kvd that has cached a prompt in HBM and was killed.
  void leave_a_prompt() {
    start();
    EXPECT_EQ(run(1), 0u);
    ASSERT_TRUE(written(kBlocks, Tier::kHbm)) << records() << kvd_->log();
    EXPECT_EQ(records(Tier::kDram), 0u);
    kill();
  }
};

TEST_F(AdoptingHbm, WhatHbmAloneCachedIsFoundAfterAKill) {
  leave_a_prompt();
  for (int i = 0; i < 3; ++i) {
    start();
    EXPECT_EQ(kept(Tier::kHbm), double{kBlocks}) << kvd_->log();
    EXPECT_EQ(metric("kvd_kept_bytes{tier=\"hbm\"}"), double{kBlocks << 14});
    EXPECT_EQ(run(1), kTokens - 1) << "and every byte of it is right";
    const auto shared = [this] { return metric("kvd_prefix_tokens_total{source=\"hbm\"}"); };
    EXPECT_TRUE(poll_until([&] { return shared() == double{kTokens - 1}; })) << "it is not copied";
    EXPECT_EQ(records(Tier::kHbm), kBlocks);
    EXPECT_TRUE(poll_until([&] { return store_.size() == 25; })) << store_.size();
    kill();
  }
}

TEST_F(AdoptingHbm, AByteThatSomebodyAlteredBeforeTheStartIsAMiss) {
  leave_a_prompt();
  ASSERT_NO_FATAL_FAILURE(alter(70));
  start();
  EXPECT_EQ(kept(Tier::kHbm), 70.0);
  EXPECT_EQ(dropped("altered"), 1.0);
  EXPECT_EQ(dropped("parent"), double{kBlocks - 71});
  EXPECT_EQ(run(1), 70 * StoreNode::kBlockTokens);
}

// Writes like an engine of the earlier kvd that still maps the memory: vLLM goes on computing in
// its region.
TEST_F(AdoptingHbm, WhoeverStillHasTheOldMemoryKeepsItAndWritesToNobodys) {
  leave_a_prompt();
  std::vector<UniqueFd> old;
  std::vector<std::vector<char>> before;
  old.reserve(8);
  for (int slab = 0; slab < 8; ++slab)
    old.push_back(store_.find("kvd-hbm-" + std::to_string(slab)));
  for (const UniqueFd& slab : old) {
    ASSERT_TRUE(slab.valid());
    ASSERT_EQ(::pwrite(slab.get(), "theirs", 6, kSlabBytes - 6), 6) << "beyond all blocks";
    before.push_back(bytes_of(slab));
  }
  start();
  const std::vector<char> garbage(kSlabBytes, 'x');
  for (std::size_t slab = 0; slab < old.size(); ++slab) {
    EXPECT_TRUE(bytes_of(old[slab]) == before[slab]) << "it is not this kvd's to touch";
    ASSERT_EQ(::pwrite(old[slab].get(), garbage.data(), garbage.size(), 0), std::ssize(garbage));
  }
  EXPECT_EQ(run(1), kTokens - 1) << "and every byte of it is right";
  kill();
  start();
  EXPECT_EQ(kept(Tier::kHbm), double{kBlocks}) << "the next one takes over the new memory";
  EXPECT_EQ(run(1), kTokens - 1);
}

TEST_F(AdoptingHbm, ARecordThatIsHalfWrittenIsAMiss) {
  leave_a_prompt();
  const UniqueFd state = store_.find("kvd-state");
  const Records records(state);
  ++records.numbered(50)->place.slot;
  start();
  EXPECT_EQ(kept(Tier::kHbm), 50.0);
  EXPECT_EQ(dropped("torn"), 1.0);
  EXPECT_EQ(run(1), 50 * StoreNode::kBlockTokens);
}

TEST_F(AdoptingHbm, WhatWasClearedStaysGone) {
  start();
  EXPECT_EQ(run(1), 0u);
  EXPECT_EQ(kvd_->clear_cache().status, 200);
  ASSERT_TRUE(poll_until([&] { return records() == 0; }));
  kill();
  start();
  EXPECT_EQ(kept(), 0.0);
  EXPECT_EQ(run(1), 0u);
}

// Another domain's engine keeps all of HBM mapped, so this domain's slabs have new memory.
TEST_F(AdoptingHbm, ASlabThatChangedItsDomainIsKeptWithItsNewMemory) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become somebody else";
  settings_.extra +=
      "[[domain]]\nname = 'theirs'\nuids = [65534]\n[[domain]]\nname = 'ours'\nuids = [0]\n";
  start();
  for (const char* socket : {"attach.sock", "command.sock"}) {
    std::filesystem::permissions(folder_.file(socket), std::filesystem::perms(0666));
  }
  ChildProcess spy(
      {{built_program("kvd-test-engine"), "spy", kvd_->endpoint(), "65534", "16", "leave", "0"},
       {}});
  ASSERT_TRUE(spy.wait_for_line("spy ")) << spy.errors() << kvd_->log();
  EXPECT_EQ(run(1), 0u);
  ASSERT_TRUE(written(kBlocks, Tier::kHbm)) << records() << kvd_->log();
  EXPECT_TRUE(poll_until([this] { return metric("kvd_slabs_renewed_total") > 0; }));
  kill();
  start();
  EXPECT_EQ(kept(Tier::kHbm), double{kBlocks}) << kvd_->log();
  EXPECT_EQ(run(1), kTokens - 1) << "and every byte of it is right";
}

TEST_F(AdoptingHbm, WithFewDescriptorsDramAloneIsKeptAndTheLogSaysSo) {
  settings_.dram = "160MiB";  // 80 slabs and 8 of HBM, where 100 are kept
  settings_.hbm = "48MiB";    // with the 24 of this it is too much
  start();
  EXPECT_NE(kvd_->log().find("what HBM alone caches ends with this kvd"), std::string::npos);
  EXPECT_EQ(run(1), 0u);
  kill();
  EXPECT_TRUE(poll_until([&] { return store_.size() == 81; })) << store_.size();
  start();
  EXPECT_EQ(kept(), 0.0);
  EXPECT_EQ(run(1), 0u);
}

TEST_F(Adopting, AChainOverBothTiersIsFound) {
  settings_.dram = "2MiB";  // 128 blocks
  start();
  EXPECT_EQ(run(1) + run(2), 0u);
  ASSERT_TRUE(poll_until([&] { return records() == 2 * kBlocks; })) << records() << kvd_->log();
  kill();
  const std::size_t written = records();
  start();
  EXPECT_GT(kept(Tier::kHbm), 0.0) << kvd_->log();
  EXPECT_GT(kept(Tier::kDram), 0.0) << kvd_->log();
  EXPECT_EQ(kept() + dropped("parent"), static_cast<double>(written));
  EXPECT_GT(run(1) + run(2), kTokens) << "and every byte of it is right";
}

void Adopting::kill_under_load() {
  const char* wanted = std::getenv("KVD_TEST_KILLS");
  const int kills = wanted != nullptr ? std::atoi(wanted) : 6;
  const std::uint64_t seed = std::random_device()();
  RecordProperty("seed", std::to_string(seed));
  std::mt19937_64 random(seed);
  settings_.hbm = "4MiB";
  settings_.dram = "8MiB";
  std::uint64_t found = 0, taken = 0, taken_in_hbm = 0;
  start();
  for (int i = 0; i < kills; ++i) {
    ChildProcess engine({{built_program("kvd-cache-engine"), kvd_->endpoint(),
                          std::to_string(random() % 1'000'000)},
                         {}});
    for (std::uint64_t runs = 1 + random() % 20; runs > 0; --runs) {
      const auto line = engine.wait_for_line("found");
      ASSERT_TRUE(line) << engine.errors() << kvd_->log();
      found += std::strtoull(line->c_str() + 6, nullptr, 10);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    kill();
    EXPECT_NE(engine.wait(), StoreNode::kWrongByte) << "seed " << seed << engine.errors();
    const std::size_t written = records();
    start();
    const double torn = dropped("torn");
    for (const char* reason : {"altered", "misfit", "domain"}) {
      EXPECT_EQ(dropped(reason), 0.0)
          << reason << ", kill " << i << ", seed " << seed << kvd_->log();
    }
    EXPECT_EQ(kept() + dropped("parent") + torn, static_cast<double>(written))
        << "seed " << seed << kvd_->log();
    EXPECT_LE(torn, 1.0) << "one is written at a time";
    taken += static_cast<std::uint64_t>(kept(Tier::kDram));
    taken_in_hbm += static_cast<std::uint64_t>(kept(Tier::kHbm));
  }
  EXPECT_GT(found, 0u);
  EXPECT_GT(taken + taken_in_hbm, 0u);
  std::printf("%d kills, seed %llu: %llu blocks in DRAM and %llu in HBM taken over, %llu found\n",
              kills, static_cast<unsigned long long>(seed), static_cast<unsigned long long>(taken),
              static_cast<unsigned long long>(taken_in_hbm),
              static_cast<unsigned long long>(found));
}

TEST_F(Adopting, UnderLoadAllThatWasWrittenDownIsTakenOver) { kill_under_load(); }
TEST_F(AdoptingHbm, UnderLoadAllThatWasWrittenDownIsTakenOver) { kill_under_load(); }

// After a crash, and then by an upgrade.
TEST(Holder, StartsKvdAgainWithWhatHbmAloneHad) {
  KvdSettings settings;
  settings.under = {built_program("kvd-holder"), "--"};
  settings.extra = "[rotation]\neager = false\n";
  StoreNode node(settings);
  EXPECT_EQ(node.run(1, kTokens), 0u);
  const auto in_hbm = [&] {
    return node.daemon().metric("kvd_cache_bytes{tier=\"hbm\"}").value_or(0) >= kBlocks << 14;
  };
  const auto found_after = [&](StoreNode::End end) {
    EXPECT_TRUE(poll_until(in_hbm)) << node.daemon().log();
    node.replace_held(end);
    node.attach_again();
    return node.run(1, kTokens);
  };
  std::uint64_t found = 0;
  for (int kills = 0; kills < 20 && found < kTokens - 1; ++kills) {
    found = found_after(StoreNode::End::kKilled);
  }
  EXPECT_EQ(found, kTokens - 1) << node.daemon().log();
  EXPECT_EQ(found_after(StoreNode::End::kUpgraded), kTokens - 1) << node.daemon().log();
}

// This is how it is done without systemd. What is cached is written down a moment later, so a kill
// may come too soon; the next one does not.
TEST(Holder, StartsAKilledKvdAgainWithAllThatItHad) {
  KvdSettings settings;
  settings.under = {built_program("kvd-holder"), "--"};
  StoreNode node(settings);
  EXPECT_EQ(node.run(1, kTokens), 0u);
  std::uint64_t found = 0;
  const auto in_dram = [&] {
    return node.daemon().metric("kvd_cache_bytes{tier=\"dram\"}").value_or(0) >= kBlocks << 14;
  };
  for (int kills = 0; kills < 20 && found < kTokens - 1; ++kills) {
    ASSERT_TRUE(poll_until(in_dram)) << node.daemon().log();
    node.replace_held();
    node.attach_again();
    found = node.run(1, kTokens);
  }
  EXPECT_EQ(found, kTokens - 1) << node.daemon().log();
}

TEST(Holder, EndsWithKvdWhenItIsToldTo) {
  const RuntimeFolder folder;
  KvdSettings settings;
  settings.under = {built_program("kvd-holder")};
  KvdProcess holder(folder, settings);
  ASSERT_TRUE(holder.wait_ready()) << holder.log();
  const pid_t kvd = child_of(holder.pid());
  holder.signal(SIGUSR1);
  ASSERT_TRUE(poll_until([&] {
    const pid_t next = child_of(holder.pid());
    return next > 0 && next != kvd;
  })) << "an upgrade starts another kvd";
  ASSERT_TRUE(holder.wait_ready()) << holder.log();
  holder.signal(SIGTERM);
  EXPECT_EQ(holder.wait(), 0) << holder.log();
}

/// Whether kvd ends with the holder that started it by way of these programs.
void takes_kvd_along(const std::vector<std::string>& between) {
  const RuntimeFolder folder;
  KvdSettings settings;
  settings.under = {built_program("kvd-holder"), "--"};
  settings.under.insert(settings.under.end(), between.begin(), between.end());
  KvdProcess holder(folder, settings);
  ASSERT_TRUE(holder.wait_ready()) << holder.log();
  const std::string kvd = "/proc/" + std::to_string(child_of(holder.pid())) + "/cmdline";
  holder.signal(SIGKILL);
  EXPECT_EQ(holder.wait(), 128 + SIGKILL);
  EXPECT_TRUE(poll_until([&] {
    std::string words;
    return !std::getline(std::ifstream(kvd), words);  // a zombie has none, either
  })) << holder.log();
}

TEST(Holder, TakesItsKvdAlongWhenItIsKilled) { takes_kvd_along({}); }

// A change of user makes the kernel forget that a process is to end with its parent.
TEST(Holder, TakesAKvdOfAnotherUserAlong) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to change the user";
  takes_kvd_along({"/usr/bin/setpriv", "--regid=65534", "--clear-groups"});
}

// Whatever stands in /proc/net/unix by a name can be sent to by everybody on the machine.
TEST(Holder, HasNoSocketThatAnybodyCanSendTo) {
  const RuntimeFolder folder;
  KvdSettings settings;
  settings.under = {built_program("kvd-holder")};
  const KvdProcess holder(folder, settings);
  ASSERT_TRUE(holder.wait_ready()) << holder.log();
  std::set<std::string> sockets;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(holder.pid()) + "/fd")) {
    const std::string target = std::filesystem::read_symlink(entry.path());
    if (target.starts_with("socket:[")) sockets.insert(target.substr(8, target.size() - 9));
  }
  std::ifstream table("/proc/net/unix");
  for (std::string line; std::getline(table, line);) {
    std::istringstream words(line);
    std::string word, inode, name;
    for (int i = 0; i < 6; ++i) words >> word;
    words >> inode >> name;
    EXPECT_FALSE(sockets.contains(inode) && !name.empty()) << line;
  }
  EXPECT_FALSE(sockets.empty()) << "it is told things by its kvd";
}

}  // namespace
}  // namespace kvd::test
