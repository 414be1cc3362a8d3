// Two nodes that share blocks by one server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kvd_client/client.hpp"
#include "tests/support/daemon_process.hpp"
#include "tests/support/free_port.hpp"
#include "tests/support/patience.hpp"
#include "tests/support/redis_server.hpp"

namespace kvd::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

/// The settings of a node. The secret is the same on all of them.
KvdSettings with(const RuntimeFolder& folder, const std::string& servers,
                 const std::string& domain = "", const std::string& more = "") {
  std::ofstream(folder.file("secret")) << std::string(64, 's') << '\n';
  ::chmod(folder.file("secret").c_str(), 0600);
  KvdSettings settings;
  settings.extra = "[remote]\nservers = '" + servers + "'\nsecret_file = '" +
                   folder.file("secret") + "'\n" + (more.empty() ? "write = 'all'\n" : more) +
                   "[load]\npolicy = 'always'\n";
  if (!domain.empty()) {
    settings.extra += "[[domain]]\nname = '" + domain + "'\nuids = [" + std::to_string(::getuid()) +
                      "]\nper_user = false\n";
  }
  return settings;
}

/// An engine with a cache of eight blocks, each of which says which it is.
class Engine {
 public:
  static constexpr std::uint64_t kBlock = 256 << 10;
  static constexpr std::uint32_t kBlocks = 8;

  explicit Engine(const KvdProcess& kvd, bool awaits = false) {
    kvd_client::Options options;
    options.endpoint = kvd.endpoint();
    client_.emplace(std::move(kvd_client::Client::open(options)).value());
    region_ = client_->allocate_region(kBlocks * kBlock, kPatience).value();
    const std::uint64_t blocks = region_.bytes / kBlock;
    cache_ = client_->caches()
                 .open({"model", 16, kBlock, region_.id, blocks, {{0, kBlock, kBlock}}, awaits},
                       kPatience)
                 .value();
  }
  /// All blocks of a prompt.
  void store(std::uint8_t prompt) {
    fill(prompt);
    ASSERT_TRUE(
        client_->caches().store(cache_, digests(prompt), all(), false, kPatience, ticket_).ok());
    ASSERT_TRUE(client_->caches().wait({&ticket_, 1}, kPatience).ok());
  }
  [[nodiscard]] std::uint64_t leading(std::uint8_t prompt) {
    return client_->caches().lookup(cache_, digests(prompt), kPatience).value();
  }
  /// The first answer of a cache that awaits the servers.
  [[nodiscard]] std::uint64_t leading_in_the_end(std::uint8_t prompt) {
    auto found = client_->caches().lookup(cache_, digests(prompt), kPatience);
    const bool ended = poll_until([&] {
      const bool waits = !found.ok() && found.error().code == kvd_client::ErrorCode::kWouldBlock;
      if (waits) found = client_->caches().lookup(cache_, digests(prompt), kPatience);
      return !waits;
    });
    EXPECT_TRUE(ended && found.ok()) << (found.ok() ? "it waits on" : found.error().message);
    return found.ok() ? *found : 0;
  }
  /// Asks again until all blocks are known.
  [[nodiscard]] bool finds(std::uint8_t prompt) {
    return poll_until([&] { return leading(prompt) == kBlocks; });
  }
  /// False: they could not be had. Else every byte is right.
  [[nodiscard]] bool load(std::uint8_t prompt) {
    fill(0);
    const auto asked = client_->caches().load(cache_, digests(prompt), all(), kPatience, ticket_);
    if (!asked.ok()) return false;
    (void)client_->caches().wait({&ticket_, 1}, kPatience);
    if (client_->caches().poll({&ticket_, 1}).front() != kvd_client::TicketState::kDone) {
      return false;
    }
    for (std::uint32_t i = 0; i < kBlocks; ++i) {
      for (const std::byte byte : block(i)) {
        if (byte != byte_of(prompt, i)) {
          ADD_FAILURE() << "a wrong byte in block " << i;
          return true;
        }
      }
    }
    return true;
  }

 private:
  static std::byte byte_of(std::uint8_t prompt, std::uint32_t i) {
    return static_cast<std::byte>(prompt * 16 + i);
  }
  [[nodiscard]] std::span<std::byte> block(std::uint32_t i) const {
    return {region_.address + i * kBlock, kBlock};
  }
  void fill(std::uint8_t prompt) {
    for (std::uint32_t i = 0; i < kBlocks; ++i) {
      std::ranges::fill(block(i), byte_of(prompt, i));
    }
  }
  static std::vector<std::uint32_t> all() { return {0, 1, 2, 3, 4, 5, 6, 7}; }
  static std::vector<kvd_client::Digest> digests(std::uint8_t prompt) {
    std::vector<kvd_client::Digest> made(kBlocks);
    for (std::uint32_t i = 0; i < kBlocks; ++i) {
      made[i][0] = static_cast<std::uint8_t>(i);
      made[i][1] = prompt;
    }
    return made;
  }

  std::optional<kvd_client::Client> client_;
  kvd_client::Region region_;
  std::uint64_t cache_ = 0, ticket_ = 0;
};

class RemoteNodes : public testing::Test {
 protected:
  void SetUp() override {
    KVD_NEEDS_REDIS();
    server_.emplace(folder_.file("redis"));
    first_.emplace(one_, with(folder_, server_->address()));
    second_.emplace(two_, with(folder_, server_->address()));
    ASSERT_TRUE(first_->wait_ready()) << first_->log();
    ASSERT_TRUE(second_->wait_ready()) << second_->log();
  }
  static json remote(const KvdProcess& kvd) { return json::parse(kvd.get("/v1/remote").body); }
  static bool is_on(const KvdProcess& kvd, bool on) {
    return poll_until([&] {  // kvd-admin may come later than kvd
      return kvd.get("/v1/remote").status == 200 && remote(kvd)["servers"][0]["on"] == on;
    });
  }
  /// Whether the server has this many blocks.
  [[nodiscard]] bool has(std::size_t blocks) {
    return poll_until([&] { return server_->keys().size() == blocks; });
  }

  const RuntimeFolder folder_, one_, two_;
  std::optional<RedisServer> server_;
  std::optional<KvdProcess> first_, second_;
};

TEST_F(RemoteNodes, WhatOneStoresTheOtherLoads) {
  ASSERT_TRUE(is_on(*first_, true));
  Engine on_first(*first_), on_second(*second_);
  on_first.store(1);
  ASSERT_TRUE(has(8)) << first_->log();
  EXPECT_EQ(on_second.leading(2), 0u);
  ASSERT_TRUE(on_second.finds(1)) << second_->log();
  EXPECT_TRUE(on_second.load(1));
  EXPECT_THAT(second_->log(), HasSubstr("remote server " + server_->address() + " is on"));
  EXPECT_TRUE(poll_until([&] { return remote(*second_)["loads"] == 8; }));
  EXPECT_TRUE(poll_until([&] { return remote(*first_)["stores"] == 8; }));
  EXPECT_EQ(second_->metric("kvd_remote_blocks_total{direction=\"load\"}"), 8);
  EXPECT_EQ(second_->metric("kvd_remote_server_up{server=\"" + server_->address() + "\"}"), 1);
}

TEST_F(RemoteNodes, WhoeverAwaitsTheServersFindsAllAtOnceOrNothing) {
  ASSERT_TRUE(is_on(*first_, true) && is_on(*second_, true));
  Engine on_first(*first_), on_second(*second_, true);
  on_first.store(1);
  ASSERT_TRUE(has(8)) << first_->log();
  EXPECT_EQ(on_second.leading_in_the_end(1), 8u);
  EXPECT_EQ(on_second.leading_in_the_end(2), 0u);
  EXPECT_TRUE(on_second.load(1));
}

TEST_F(RemoteNodes, AChangedByteIsAMiss) {
  ASSERT_TRUE(is_on(*first_, true));
  Engine on_first(*first_), on_second(*second_);
  on_first.store(1);
  ASSERT_TRUE(has(8));
  for (const std::string& key : server_->keys()) server_->say({"SETRANGE", key, "100000", "!"});
  ASSERT_TRUE(on_second.finds(1));
  EXPECT_FALSE(on_second.load(1));
  EXPECT_EQ(remote(*second_)["loads"], 0);
  EXPECT_TRUE(has(0)) << "they make way for the right ones";
  on_second.store(1);
  EXPECT_TRUE(has(8));
}

TEST_F(RemoteNodes, ADomainFindsNothingOfAnother) {
  ASSERT_TRUE(is_on(*first_, true));
  Engine on_first(*first_);
  on_first.store(1);
  ASSERT_TRUE(has(8));
  const RuntimeFolder three;
  const KvdProcess other(three, with(folder_, server_->address(), "other"));
  ASSERT_TRUE(other.wait_ready()) << other.log();
  ASSERT_TRUE(is_on(other, true));
  Engine there(other);
  EXPECT_EQ(there.leading(1), 0u);
  ASSERT_TRUE(poll_until([&] { return remote(other)["servers"][0]["finds"] >= 1; }));
  EXPECT_EQ(there.leading(1), 0u);
  there.store(1);
  EXPECT_TRUE(has(16));
  for (const std::string& key : server_->keys()) {
    EXPECT_THAT(key, MatchesRegex("kvd1:[0-9a-f]{64}"));
    const std::string header = server_->say({"GETRANGE", key, "0", "4095"});
    ASSERT_GT(header.size(), 4095u);
    EXPECT_THAT(header, Not(HasSubstr("other"))) << "the domain";
    EXPECT_THAT(header, Not(HasSubstr("model")));
  }
}

TEST_F(RemoteNodes, WithoutTheServerLocalWorkGoesOn) {
  ASSERT_TRUE(is_on(*first_, true));
  Engine on_first(*first_), on_second(*second_);
  on_first.store(1);
  ASSERT_TRUE(has(8));
  ASSERT_TRUE(on_second.finds(1));
  server_->kill();
  ASSERT_TRUE(is_on(*second_, false));
  EXPECT_TRUE(poll_until([&] {
    const std::string why = remote(*second_)["servers"][0]["why"];
    return why.find("start the server") != std::string::npos;
  })) << remote(*second_);
  EXPECT_EQ(on_second.leading(1), 0u);
  on_second.store(2);
  EXPECT_EQ(on_second.leading(2), 8u);
  EXPECT_TRUE(on_second.load(2));
  server_->start();
  ASSERT_TRUE(is_on(*second_, true));
  on_second.store(3);
  EXPECT_TRUE(has(8)) << second_->log();
}

TEST_F(RemoteNodes, AStoppedServerDelaysNoLocalLookup) {
  ASSERT_TRUE(is_on(*second_, true));
  Engine engine(*second_);
  engine.store(2);
  server_->process().signal(SIGSTOP);
  const auto lookup_s = [&](std::uint8_t prompt) {
    const auto began = std::chrono::steady_clock::now();
    (void)engine.leading(prompt);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  };
  std::vector<double> took;
  for (std::uint8_t i = 0; i < 200; ++i) {
    (void)lookup_s(static_cast<std::uint8_t>(3 + i % 8));  // asks the server that says nothing
    took.push_back(lookup_s(2));
  }
  std::ranges::sort(took);
  EXPECT_LT(took[took.size() * 9 / 10], 0.35) << "far under the server's silence";
  server_->process().signal(SIGCONT);
}

TEST(RemoteProgram, NamesWhatIsWrongWithItsFiles) {
  const RuntimeFolder folder;
  const KvdSettings settings = with(folder, "unix:/nowhere");
  ::chmod(folder.file("secret").c_str(), 0644);
  std::ofstream(folder.file("kvd.toml")) << toml_of(folder, settings, free_port(), free_port());
  const KvdRun run = run_kvd({"--config", folder.file("kvd.toml")});
  EXPECT_NE(run.status, 0);
  EXPECT_THAT(run.output, HasSubstr("remote.secret_file"));
  EXPECT_THAT(run.output, HasSubstr("chmod 600"));
  const KvdRun check = run_kvd({"--config", folder.file("kvd.toml"), "--check-config"});
  EXPECT_EQ(check.status, 0) << "the file may be another one where kvd runs";
  EXPECT_THAT(check.output, HasSubstr("not on this machine: remote.secret_file"));
}

}  // namespace
}  // namespace kvd::test
