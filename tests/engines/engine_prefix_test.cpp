// Prompts that begin with tokens whose KV is known: kvd-engine computes only the rest, and its
// logits are those of an engine that computed everything, bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "tests/engines/engine_support.hpp"
#include "tests/support/daemon_process.hpp"
#include "tests/support/patience.hpp"

namespace kvd::test {
namespace {

using nlohmann::json;

constexpr std::uint64_t kBlock = 16;
constexpr std::uint64_t kFirst = 100;  ///< tokens of the first turn's prompt

json tokens_of(std::uint64_t seed, std::size_t count) {
  json tokens = json::array();
  for (std::size_t i = 0; i < count; ++i) tokens.push_back((seed * 131 + i * i * 7) % 256);
  return tokens;
}

json asking(const json& prompt, std::uint64_t max_tokens = 60) {
  return {{"prompt", prompt}, {"max_tokens", max_tokens}, {"kvd_digest", true}};
}

/// The earlier conversation, the answer to it, and something new.
json next_turn(const json& prompt, const Generation& answer, std::uint64_t seed) {
  json next = prompt;
  for (const std::uint32_t token : answer.tokens) next.push_back(token);
  for (const json& token : tokens_of(seed, 30)) next.push_back(token);
  return next;
}

std::uint64_t cached(const Generation& answer) {
  return answer.usage.at("prompt_tokens_details").at("cached_tokens");
}

std::uint64_t whole_blocks(std::uint64_t tokens) { return tokens / kBlock * kBlock; }

class EnginePrefix : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(reference_.wait_ready()) << reference_.log();
    kvd_.emplace(folder_, settings());
    ASSERT_TRUE(kvd_->wait_ready()) << kvd_->log();
    start();
  }
  virtual KvdSettings settings() const { return {}; }
  void start() {
    engine_.emplace(kvd_->endpoint());
    ASSERT_TRUE(engine_->wait_ready()) << engine_->log();
  }
  Generation ask(const json& body) { return post(engine_->port(), body.dump()); }
  Generation right(const json& body) { return post(reference_.port(), body.dump()); }
  json prefixes() const {
    return json::parse(kvd_->get("/v1/status").body).at("counters").at("prefixes");
  }
  std::int64_t cached_bytes() {
    const json bytes = json::parse(kvd_->get("/v1/cache").body).at("cached_bytes");
    return bytes["hbm"].get<std::int64_t>() + bytes["dram"].get<std::int64_t>();
  }
  void end_engine(int signal) {
    engine_->signal(signal);
    (void)engine_->wait();
    engine_.reset();
  }

  EngineProcess reference_{""};
  const RuntimeFolder folder_;
  std::optional<KvdProcess> kvd_;
  std::optional<EngineProcess> engine_;
};

TEST_F(EnginePrefix, ATurnComputesOnlyWhatIsNew) {
  const json first = asking(tokens_of(1, kFirst));
  const Generation one = ask(first);
  EXPECT_TRUE(one.same_bits(right(first)));
  EXPECT_EQ(cached(one), 0U);

  const json second = asking(next_turn(first["prompt"], one, 2));
  const Generation two = ask(second);
  EXPECT_TRUE(two.same_bits(right(second)));
  // The user got its last token, whose KV was never computed.
  EXPECT_EQ(cached(two), whole_blocks(kFirst + one.tokens.size() - 1));
  EXPECT_TRUE(poll_until([&] { return prefixes()["tokens_in_hbm"] == cached(two); }));
}

TEST_F(EnginePrefix, WhatIsClearedIsComputedAgain) {
  const json asked = asking(tokens_of(1, kFirst));
  const Generation expected = right(asked);
  (void)ask(asked);
  ASSERT_TRUE(poll_until([&] { return cached_bytes() > 0; }));
  const auto cleared = kvd_->clear_cache();
  ASSERT_EQ(cleared.status, 200) << cleared.body;
  EXPECT_EQ(cached_bytes(), 0);
  const Generation again = ask(asked);
  EXPECT_TRUE(again.same_bits(expected));
  EXPECT_EQ(cached(again), 0U);
}

TEST_F(EnginePrefix, AnotherEngineAndALaterOneFindIt) {
  const json asked = asking(tokens_of(1, kFirst));
  const Generation expected = right(asked);
  (void)ask(asked);
  EngineProcess other(kvd_->endpoint());
  ASSERT_TRUE(other.wait_ready()) << other.log();
  const Generation beside = post(other.port(), asked.dump());
  EXPECT_TRUE(beside.same_bits(expected));
  EXPECT_EQ(cached(beside), whole_blocks(kFirst - 1));

  for (const int signal : {SIGTERM, SIGKILL}) {
    end_engine(signal);
    start();
    const Generation later = ask(asked);
    EXPECT_TRUE(later.same_bits(expected));
    EXPECT_EQ(cached(later), whole_blocks(kFirst - 1)) << "after signal " << signal;
  }
}

TEST_F(EnginePrefix, OtherWeightsAndOtherSaltsFindNothing) {
  json asked = asking(tokens_of(1, kFirst));
  (void)ask(asked);
  EngineProcess other(kvd_->endpoint(), {}, EngineProcess::kModel + ",seed=77");
  ASSERT_TRUE(other.wait_ready()) << other.log();
  EXPECT_EQ(cached(post(other.port(), asked.dump())), 0U);
  asked["cache_salt"] = "alice";
  EXPECT_EQ(cached(ask(asked)), 0U);
  EXPECT_EQ(cached(ask(asked)), whole_blocks(kFirst - 1));
  asked["cache_salt"] = "bob";
  EXPECT_EQ(cached(ask(asked)), 0U);
}

/// The control: if what was found were not read, zeros there would change nothing.
TEST_F(EnginePrefix, TheFoundBlocksAreRead) {
  const json asked = asking(tokens_of(1, kFirst));
  const Generation expected = ask(asked);
  ChildProcess zeroing(
      {{built_program("kvd-zero-pool"), "--pid", std::to_string(engine_->pid())}, {}});
  ASSERT_EQ(zeroing.wait(), 0) << zeroing.errors();
  const Generation answer = ask(asked);
  EXPECT_EQ(cached(answer), whole_blocks(kFirst - 1));
  EXPECT_FALSE(answer.same_bits(expected));
}

class EnginePrefixInDram : public EnginePrefix {
 protected:
  /// Whatever is in HBM makes way for the next long prompt, and is in DRAM by then.
  KvdSettings settings() const override {
    KvdSettings settings;
    settings.hbm = "2MiB";
    settings.extra =
        "[load]\npolicy = 'always'\n[placement]\npolicy = 'none'\n"
        "[admission]\npolicy = 'none'\n";
    return settings;
  }
};

TEST_F(EnginePrefixInDram, WhatLeftHbmIsLoaded) {
  const json asked = asking(tokens_of(1, kFirst));
  const Generation expected = right(asked);
  EXPECT_TRUE(ask(asked).same_bits(expected));
  const json large = asking(tokens_of(9, 1010), 8);
  EXPECT_TRUE(ask(large).same_bits(right(large)));
  EXPECT_TRUE(poll_until([&] { return prefixes()["evicted_bytes"]["hbm"] > 0; }));
  const Generation again = ask(asked);
  EXPECT_TRUE(again.same_bits(expected));
  EXPECT_EQ(cached(again), whole_blocks(kFirst - 1));
  EXPECT_TRUE(poll_until([&] { return prefixes()["tokens_in_dram"] > 0; })) << prefixes();
}

class EnginePrefixOnDisk : public EnginePrefix {
 protected:
  static constexpr std::uint64_t kRows = (kFirst - 1) / kBlock;

  KvdSettings settings() const override {
    KvdSettings settings;
    settings.hbm = "2MiB";
    settings.dram = "4MiB";
    settings.extra = "[disk]\npath = '" + disk() +
                     "'\nsize = '16MiB'\nfloor = '1MiB'\ntouches = 1\n"
                     "[load]\npolicy = 'always'\n[placement]\npolicy = 'none'\n"
                     "[admission]\npolicy = 'none'\n";
    return settings;
  }
  std::string disk() const { return folder_.path() + "/disk"; }
  double count(const std::string& series) { return kvd_->metric(series).value_or(-1); }
  double loads() { return count("kvd_disk_blocks_total{direction=\"load\"}"); }
  double failures() { return count("kvd_disk_failures_total{direction=\"load\"}"); }
  /// The block is on disk, whatever becomes of memory.
  void leave_on_disk(const json& asked) {
    (void)ask(asked);
    ASSERT_TRUE(poll_until([&] {
      return count("kvd_disk_blocks_total{direction=\"store\"}") >= static_cast<double>(kRows);
    })) << kvd_->log();
  }
  /// Another kvd and another engine start, so nothing is left in memory.
  void restart(int signal) {
    end_engine(SIGTERM);
    kvd_->signal(signal);
    (void)kvd_->wait();
    kvd_.emplace(folder_, settings());
    ASSERT_TRUE(kvd_->wait_ready()) << kvd_->log();
    start();
  }
  /// Any request opens the files of its model.
  void wait_for_index() {
    (void)ask(asking(tokens_of(5, 40), 1));
    ASSERT_TRUE(poll_until([&] { return count("kvd_cache_bytes{tier=\"disk\"}") > 0; }))
        << kvd_->log();
  }
  /// One byte of each stored block, behind its header.
  int flip_payloads() {
    int flipped = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(disk())) {
      if (entry.path().filename() != "segment-0000") continue;
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      const auto size = static_cast<std::streamoff>(entry.file_size());
      for (std::streamoff at = 4096; at + 4200 < size; at += 4096) {
        char magic[8] = {};
        file.seekg(at).read(magic, 8);
        if (std::string_view(magic, 8) != "KVDBLOCK") continue;
        char byte = 0;
        file.seekg(at + 4096 + 77).read(&byte, 1);
        byte = static_cast<char>(byte ^ 1);
        file.seekp(at + 4096 + 77).write(&byte, 1);
        ++flipped;
      }
    }
    return flipped;
  }
};

TEST_F(EnginePrefixOnDisk, AnotherEngineFindsItAfterARestart) {
  const json asked = asking(tokens_of(1, kFirst));
  const Generation expected = right(asked);
  leave_on_disk(asked);
  for (const int signal : {SIGTERM, SIGKILL}) {
    restart(signal);
    wait_for_index();
    const Generation again = ask(asked);
    EXPECT_TRUE(again.same_bits(expected)) << "after signal " << signal;
    EXPECT_EQ(cached(again), whole_blocks(kFirst - 1)) << kvd_->log();
    EXPECT_TRUE(poll_until([&] { return loads() >= static_cast<double>(kRows); })) << loads();
    EXPECT_EQ(failures(), 0);
  }
}

/// The control: what the disk gives back is looked at, and wrong bytes are computed again.
TEST_F(EnginePrefixOnDisk, AFlippedByteIsAMiss) {
  const json asked = asking(tokens_of(1, kFirst));
  const Generation expected = right(asked);
  leave_on_disk(asked);
  end_engine(SIGTERM);
  kvd_->signal(SIGTERM);
  (void)kvd_->wait();
  ASSERT_GE(flip_payloads(), static_cast<int>(kRows));
  kvd_.emplace(folder_, settings());
  ASSERT_TRUE(kvd_->wait_ready()) << kvd_->log();
  start();
  wait_for_index();
  const Generation again = ask(asked);
  EXPECT_TRUE(again.same_bits(expected));
  EXPECT_EQ(cached(again), 0U);
  EXPECT_TRUE(poll_until([&] { return failures() >= 1; })) << failures();
  EXPECT_EQ(loads(), 0);
  EXPECT_THAT(kvd_->log(), testing::HasSubstr("corrupt_payload"));
}

/// One kvd serves from the first prompt to the last. Memory gives blocks up because others need it,
/// and only what was asked for twice is written.
class EnginePrefixUnderPressure : public EnginePrefixOnDisk {
 protected:
  KvdSettings settings() const override {
    KvdSettings settings = EnginePrefixOnDisk::settings();
    const std::string once = "touches = 1\n";
    settings.extra.replace(settings.extra.find(once), once.size(), "touches = 2\n");
    return settings;
  }
  /// It was asked for twice and written, and after that it is nowhere but on disk.
  void leave_to_the_disk(const json& asked) {
    (void)ask(asked);
    leave_on_disk(asked);
    for (std::uint64_t other = 20; other < 26; ++other) {
      // It is asked for more often than the blocks that are to go.
      for (int again = 0; again < 4; ++again) (void)ask(asking(tokens_of(other, 900), 4));
    }
    ASSERT_GT(prefixes().at("evicted_bytes").at("dram").get<std::int64_t>(), 0) << prefixes();
    ASSERT_EQ(loads(), 0);
  }
};

TEST_F(EnginePrefixUnderPressure, WhatMemoryGaveUpIsFoundOnDisk) {
  const json asked = asking(tokens_of(1, kFirst));
  const Generation expected = right(asked);
  leave_to_the_disk(asked);
  const Generation again = ask(asked);
  EXPECT_TRUE(again.same_bits(expected));
  EXPECT_EQ(cached(again), whole_blocks(kFirst - 1)) << kvd_->log();
  EXPECT_TRUE(poll_until([&] { return loads() >= static_cast<double>(kRows); }))
      << loads() << prefixes();
  EXPECT_EQ(failures(), 0);
}

/// The control: the bytes that were found are those on disk.
TEST_F(EnginePrefixUnderPressure, AByteFlippedMeanwhileIsAMiss) {
  const json asked = asking(tokens_of(1, kFirst));
  const Generation expected = right(asked);
  leave_to_the_disk(asked);
  ASSERT_GE(flip_payloads(), static_cast<int>(kRows));
  const Generation again = ask(asked);
  EXPECT_TRUE(again.same_bits(expected));
  EXPECT_EQ(cached(again), 0U);
  EXPECT_TRUE(poll_until([&] { return failures() >= 1; })) << failures();
  EXPECT_EQ(loads(), 0);
  EXPECT_THAT(kvd_->log(), testing::HasSubstr("corrupt_payload"));
}

}  // namespace
}  // namespace kvd::test
