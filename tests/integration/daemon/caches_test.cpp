// Engines that place their blocks themselves, each a process of its own, over a real kvd.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvd_client/client.hpp"
#include "tests/support/daemon_process.hpp"
#include "tests/support/patience.hpp"

namespace kvd::test {
namespace {

using kvd_client::ErrorCode;
using kvd_client::TicketState;
using nlohmann::json;

ChildCommand engine(const KvdProcess& kvd, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin() + 1, kvd.endpoint());
  arguments.insert(arguments.begin(), built_program("kvd-test-engine"));
  return {std::move(arguments), {}};
}

/// Its last word.
std::string said(ChildProcess& process, const std::string& word) {
  const auto line = process.wait_for_line(word);
  EXPECT_EQ(process.wait(), 0) << process.errors();
  return line.value_or("");
}

std::int64_t bytes_in_use(const KvdProcess& kvd) {
  const json document = json::parse(kvd.get("/v1/pools").body);
  std::int64_t sum = 0;
  for (const json& pool : document["pools"]) {
    sum += pool["capacity_bytes"].get<std::int64_t>() - pool["free_bytes"].get<std::int64_t>();
  }
  return sum;
}

TEST(DaemonCaches, WhatAProcessStoredAnotherLoadsAfterItHasGone) {
  const RuntimeFolder folder;
  const KvdProcess kvd(folder);
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  ChildProcess before(engine(kvd, {"load", "0", "40"}));
  EXPECT_EQ(said(before, "missing"), "missing");
  ChildProcess stores(engine(kvd, {"store", "0", "40", "leave"}));
  EXPECT_EQ(said(stores, "stored"), "stored");
  ChildProcess loads(engine(kvd, {"load", "0", "40"}));
  EXPECT_EQ(said(loads, ""), "equal");
}

TEST(DaemonCaches, ACorruptedByteIsFound) {
  const RuntimeFolder folder;
  const KvdProcess kvd(folder);
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  ChildProcess stores(engine(kvd, {"store", "0", "40", "corrupt"}));
  EXPECT_EQ(said(stores, "stored"), "stored");
  ChildProcess loads(engine(kvd, {"load", "0", "40"}));
  EXPECT_EQ(said(loads, ""), "differ 1");
}

TEST(DaemonCaches, AnEngineKilledUnderItsCopiesLeaksNothing) {
  const RuntimeFolder folder;
  const KvdProcess kvd(folder, {.bandwidth = "100MiB/s"});
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  for (int round = 0; round < 3; ++round) {
    ChildProcess copies(engine(kvd, {"store", "0", "80", "hold"}));
    ASSERT_TRUE(copies.wait_for_line("stored")) << copies.errors();
    copies.signal(SIGKILL);
    EXPECT_EQ(copies.wait(), 128 + SIGKILL);
    (void)kvd.clear_cache();
    EXPECT_TRUE(poll_until([&] {
      (void)kvd.clear_cache();
      return bytes_in_use(kvd) == 0;
    })) << kvd.get("/v1/pools").body;
  }
}

struct Placing {
  explicit Placing(const KvdProcess& kvd) : client(attached(kvd)) {
    auto leased = client.allocate_region(4 << 20, kPatience);
    EXPECT_TRUE(leased.ok()) << (leased.ok() ? "" : leased.error().message);
    region = *leased;
    auto opened = client.caches().open(
        {"test", 16, kBlock, region.id, region.bytes / kBlock, {{0, kBlock, kBlock}}}, kPatience);
    EXPECT_TRUE(opened.ok()) << (opened.ok() ? "" : opened.error().message);
    cache = *opened;
  }
  static kvd_client::Client attached(
      const KvdProcess& kvd, kvd_client::Transport transport = kvd_client::Transport::kZmq) {
    kvd_client::Options options;
    options.transport = transport;
    options.endpoint = kvd.endpoint();
    return std::move(kvd_client::Client::open(options)).value();
  }
  static std::vector<kvd_client::Digest> digests(std::uint32_t first, std::uint32_t count) {
    std::vector<kvd_client::Digest> made(count);
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint32_t number = first + i;
      std::memcpy(made[i].data(), &number, sizeof number);
    }
    return made;
  }
  ErrorCode store(std::uint32_t first, std::uint32_t count, bool park = false) {
    const auto status =
        client.caches().store(cache, digests(first, count), blocks(count), park, kPatience, ticket);
    if (!status.ok()) return status.code();
    EXPECT_TRUE(client.caches().wait({&ticket, 1}, kPatience).ok());
    return status.code();
  }
  static std::vector<std::uint32_t> blocks(std::uint32_t count) {
    std::vector<std::uint32_t> made(count);
    for (std::uint32_t i = 0; i < count; ++i) made[i] = i;
    return made;
  }
  std::uint64_t leading(std::uint32_t first, std::uint32_t count) {
    return client.caches().lookup(cache, digests(first, count), kPatience).value();
  }
  TicketState load(std::uint32_t first, std::uint32_t count) {
    EXPECT_TRUE(
        client.caches().load(cache, digests(first, count), blocks(count), kPatience, ticket).ok());
    EXPECT_TRUE(client.caches().wait({&ticket, 1}, kPatience).ok());
    return client.caches().poll({&ticket, 1})[0];
  }
  [[nodiscard]] std::span<std::byte> block(std::uint32_t number) const {
    return {static_cast<std::byte*>(region.address) + number * kBlock, kBlock};
  }
  void fill(std::uint32_t number, int value) const {
    std::ranges::fill(block(number), static_cast<std::byte>(value));
  }
  [[nodiscard]] bool holds(std::uint32_t number, int value) const {
    return std::ranges::all_of(
        block(number), [&](std::byte each) { return each == static_cast<std::byte>(value); });
  }

  static constexpr std::uint64_t kBlock = 256 << 10;  // 16 in the region
  kvd_client::Client client;
  kvd_client::Region region;
  std::uint64_t cache = 0;
  std::uint64_t ticket = 0;
};

/// Each stored block is worth a write.
KvdSettings with_disk(const RuntimeFolder& disk) {
  KvdSettings settings;
  settings.extra =
      "[disk]\npath = '" + disk.path() + "'\nsize = '32MiB'\nfloor = '1MiB'\ntouches = 1\n";
  return settings;
}

/// Stores 8 blocks, each of its number, and kills kvd once they are on disk: DRAM is gone then.
void leave_on_disk(const RuntimeFolder& folder, const KvdSettings& settings) {
  KvdProcess kvd(folder, settings);
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  Placing engine(kvd);
  for (std::uint32_t i = 0; i < 8; ++i) engine.fill(i, static_cast<int>(i + 1));
  // Asks repeatedly, because the files are being opened meanwhile. The bytes include blocks that
  // are still being written; the stores count only written ones.
  ASSERT_TRUE(poll_until([&] {
    EXPECT_EQ(engine.store(0, 8), ErrorCode::kOk);
    const json cache = json::parse(kvd.get("/v1/cache").body);
    return cache["cached_bytes"]["disk"] == 8 * Placing::kBlock && cache["disk"]["stores"] == 8;
  })) << kvd.get("/v1/cache").body;
  kvd.signal(SIGKILL);
  (void)kvd.wait();
}

TEST(DaemonCaches, WhatTheDiskHasIsLoadedAfterKvdAndItsMemoryAreGone) {
  const RuntimeFolder folder, disk;
  leave_on_disk(folder, with_disk(disk));
  const KvdProcess kvd(folder, with_disk(disk));
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  Placing engine(kvd);
  ASSERT_TRUE(poll_until([&] { return engine.leading(0, 9) == 8; })) << kvd.log();
  EXPECT_EQ(engine.load(0, 8), TicketState::kDone) << kvd.log();
  for (std::uint32_t i = 0; i < 8; ++i) EXPECT_TRUE(engine.holds(i, static_cast<int>(i + 1))) << i;
  EXPECT_FALSE(engine.holds(0, 2)) << "the control";
}

TEST(DaemonCaches, WhatWasClearedIsNotFoundByALaterKvd) {
  const RuntimeFolder folder, disk;
  leave_on_disk(folder, with_disk(disk));
  {
    KvdProcess kvd(folder, with_disk(disk));
    ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
    Placing engine(kvd);
    ASSERT_TRUE(poll_until([&] { return engine.leading(0, 8) == 8; })) << kvd.log();
    EXPECT_EQ(kvd.clear_cache().status, 200) << kvd.log();
    EXPECT_EQ(engine.leading(0, 8), 0u);
    // A block that is stored afterwards is found, which shows that the next kvd has looked at
    // everything.
    engine.fill(8, 9);
    ASSERT_TRUE(poll_until([&] {
      EXPECT_EQ(engine.store(8, 1), ErrorCode::kOk);
      return json::parse(kvd.get("/v1/cache").body)["disk"]["stores"] == 1;
    })) << kvd.get("/v1/cache").body;
    kvd.signal(SIGKILL);
    (void)kvd.wait();
  }
  const KvdProcess kvd(folder, with_disk(disk));
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  Placing engine(kvd);
  ASSERT_TRUE(poll_until([&] { return engine.leading(8, 1) == 1; })) << kvd.log();
  EXPECT_EQ(engine.leading(0, 8), 0u);
}

TEST(DaemonCaches, WhoClearsIsToldThatTheDiskCannotHaveIt) {
  const RuntimeFolder folder, disk;
  leave_on_disk(folder, with_disk(disk));
  const KvdProcess kvd(folder, with_disk(disk));
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  Placing engine(kvd);
  ASSERT_TRUE(poll_until([&] { return engine.leading(0, 8) == 8; })) << kvd.log();
  std::filesystem::path in_the_way;
  for (const auto& entry : std::filesystem::directory_iterator(disk.path())) {
    if (entry.is_directory()) in_the_way = entry.path() / "cleared.new";
  }
  ASSERT_TRUE(std::filesystem::create_directory(in_the_way));
  EXPECT_EQ(kvd.clear_cache().status, 503) << kvd.log();
  EXPECT_EQ(engine.leading(0, 8), 0u);
  std::filesystem::remove(in_the_way);
  EXPECT_EQ(kvd.clear_cache().status, 200) << kvd.log();
}

TEST(DaemonCaches, WhatWasAlteredOnDiskIsNeverLoaded) {
  const RuntimeFolder folder, disk;
  leave_on_disk(folder, with_disk(disk));
  // The bytes of each block are all alike, so all blocks are found and one byte of each is altered.
  std::size_t altered = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(disk.path())) {
    if (!entry.is_regular_file()) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(file)), {});
    for (char value = 1; value <= 8; ++value) {
      const std::size_t at = bytes.find(std::string(Placing::kBlock / 2, value));
      if (at == std::string::npos) continue;
      file.clear();
      file.seekp(static_cast<std::streamoff>(at + 1000));
      file.put('x');
      ++altered;
    }
  }
  ASSERT_EQ(altered, 8u);
  const KvdProcess kvd(folder, with_disk(disk));
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  Placing engine(kvd);
  ASSERT_TRUE(poll_until([&] { return engine.leading(0, 8) == 8; })) << kvd.log();
  EXPECT_EQ(engine.load(0, 8), TicketState::kFailed);
  EXPECT_EQ(engine.leading(0, 8), 0u) << "it is a miss from then on";
}

// DRAM has room for 32 blocks.
TEST(DaemonCaches, WhatIsParkedOutlivesPressureAndADropFreesIt) {
  const RuntimeFolder folder;
  const KvdProcess kvd(folder, {.dram = "8MiB"});
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  Placing engine(kvd);
  ASSERT_EQ(engine.store(0, 16, true), ErrorCode::kOk);
  for (std::uint32_t first = 100; first < 200; first += 16) {
    ASSERT_EQ(engine.store(first, 16), ErrorCode::kOk);
  }
  EXPECT_EQ(engine.leading(0, 16), 16u);
  EXPECT_EQ(engine.leading(100, 16), 0u);
  ASSERT_EQ(engine.store(300, 16, true), ErrorCode::kOk);
  EXPECT_EQ(engine.store(400, 1), ErrorCode::kOutOfMemory);
  EXPECT_EQ(engine.ticket, 0u);
  kvd_client::Client scheduler = Placing::attached(kvd);
  const auto looks = scheduler.caches().open({"test", 16, Placing::kBlock, 0, 0, {}}, kPatience);
  ASSERT_TRUE(looks.ok()) << looks.error().message;
  EXPECT_EQ(scheduler.caches().lookup(*looks, Placing::digests(0, 20), kPatience).value(), 16u);
  EXPECT_EQ(scheduler.caches().drop(*looks, Placing::digests(0, 16), kPatience).value(), 16u);
  EXPECT_EQ(engine.store(400, 1), ErrorCode::kOk);
}

/// A client that only looks blocks up and drops them, as an engine's scheduler does.
struct Looking {
  explicit Looking(const KvdProcess& kvd, kvd_client::Transport transport)
      : client(Placing::attached(kvd, transport)),
        cache(client.caches().open({"test", 16, Placing::kBlock, 0, 0, {}}, kPatience).value()) {}
  kvd_client::Client client;
  std::uint64_t cache = 0;
};

/// 16 blocks are stored, and a scheduler asks for them.
class PostedCommands : public ::testing::TestWithParam<kvd_client::Transport> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(kvd->wait_ready()) << kvd->log();
    engine.emplace(*kvd);
    ASSERT_EQ(engine->store(0, 16), ErrorCode::kOk);
    scheduler.emplace(*kvd, GetParam());
  }

  const RuntimeFolder folder;
  std::unique_ptr<KvdProcess> kvd = std::make_unique<KvdProcess>(folder);
  std::optional<Placing> engine;
  std::optional<Looking> scheduler;
  const std::vector<kvd_client::Digest> stored = Placing::digests(0, 16);
};

TEST_P(PostedCommands, ALookupThatWasPostedFindsItsAnswerThere) {
  const auto asked = Placing::digests(0, 20);
  const std::span<const kvd_client::Digest> first(asked.data(), 8);
  // An answer is good for a second, which this process may spend waiting for a core.
  EXPECT_TRUE(poll_until([&] {
    EXPECT_TRUE(scheduler->client.caches().post_lookup(scheduler->cache, asked).ok());
    EXPECT_TRUE(scheduler->client.caches().post_lookup(scheduler->cache, first).ok());
    EXPECT_TRUE(scheduler->client.ping(kPatience).ok());
    kvd->signal(SIGSTOP);
    const auto brief = std::chrono::milliseconds(50);
    const auto all = scheduler->client.caches().lookup(scheduler->cache, asked, brief);
    const auto some = scheduler->client.caches().lookup(scheduler->cache, first, brief);
    const auto not_posted = scheduler->client.caches().lookup(scheduler->cache, asked, brief);
    kvd->signal(SIGCONT);
    EXPECT_EQ(not_posted.code(), ErrorCode::kDeadlineExceeded) << "each answer is told once";
    return all.ok() && *all == 16 && some.ok() && *some == 8;
  }));
  EXPECT_EQ(scheduler->client.caches().lookup(scheduler->cache, asked, kPatience).value(), 16u);
}

TEST_P(PostedCommands, ADropThatWasPostedComesBeforeWhatIsAskedNext) {
  ASSERT_TRUE(scheduler->client.caches().post_drop(scheduler->cache, {stored.data() + 10, 6}).ok());
  EXPECT_EQ(scheduler->client.caches().lookup(scheduler->cache, stored, kPatience).value(), 10u);
}

TEST_P(PostedCommands, AreRefusedWhereKvdAnswersNoneAndGoOnAfterThat) {
  ASSERT_TRUE(scheduler->client.ping(kPatience).ok());
  kvd->signal(SIGSTOP);
  ErrorCode code = ErrorCode::kOk;
  int posted = 0;
  for (; code == ErrorCode::kOk && posted < 1000; ++posted) {
    code = scheduler->client.caches().post_drop(scheduler->cache, stored).code();
  }
  kvd->signal(SIGCONT);
  EXPECT_EQ(code, ErrorCode::kWouldBlock);
  EXPECT_GT(posted, 1);
  const auto left = scheduler->client.caches().lookup(scheduler->cache, stored, kPatience);
  ASSERT_TRUE(left.ok()) << left.error().message << '\n' << kvd->log();
  EXPECT_EQ(*left, 0u) << "what was posted was done";
  EXPECT_TRUE(scheduler->client.caches().post_lookup(scheduler->cache, stored).ok());
}

TEST_P(PostedCommands, AndCallsThatWereGivenUpDoNotCostTheSession) {
  ASSERT_TRUE(scheduler->client.ping(kPatience).ok());
  kvd->signal(SIGSTOP);
  for (int i = 0; i < 100; ++i) {
    const auto brief = std::chrono::milliseconds(1);
    EXPECT_EQ(scheduler->client.caches().lookup(scheduler->cache, stored, brief).code(),
              ErrorCode::kDeadlineExceeded);
    (void)scheduler->client.caches().post_drop(scheduler->cache, {stored.data() + 8, 8});
  }
  kvd->signal(SIGCONT);
  const auto left = scheduler->client.caches().lookup(scheduler->cache, stored, kPatience);
  ASSERT_TRUE(left.ok()) << left.error().message << '\n' << kvd->log();
  EXPECT_EQ(*left, 8u);
}

TEST_P(PostedCommands, FailWhereKvdIsGoneAndAreForgottenWithIt) {
  ASSERT_TRUE(scheduler->client.caches().post_lookup(scheduler->cache, stored).ok());
  kvd->signal(SIGKILL);
  (void)kvd->wait();
  kvd.reset();
  EXPECT_TRUE(poll_until([&] {
    return scheduler->client.caches().post_lookup(scheduler->cache, stored).code() ==
           ErrorCode::kUnavailable;
  }));
  const KvdProcess again(folder);
  ASSERT_TRUE(again.wait_ready()) << again.log();
  ASSERT_TRUE(poll_until([&] { return scheduler->client.ping(kPatience).ok(); }));
  const auto cache =
      scheduler->client.caches().open({"test", 16, Placing::kBlock, 0, 0, {}}, kPatience);
  ASSERT_TRUE(cache.ok()) << cache.error().message;
  EXPECT_EQ(scheduler->client.caches().lookup(*cache, stored, kPatience).value(), 0u);
}

INSTANTIATE_TEST_SUITE_P(OverBothTransports, PostedCommands,
                         ::testing::Values(kvd_client::Transport::kZmq,
                                           kvd_client::Transport::kRing),
                         [](const auto& transport) {
                           return transport.param == kvd_client::Transport::kZmq ? "Zmq" : "Ring";
                         });

TEST(DaemonCaches, ALoadEndsAsFailedWhenKvdIsKilledAndTheNextOneIsToldSo) {
  const RuntimeFolder folder;
  auto kvd = std::make_unique<KvdProcess>(folder, KvdSettings{.bandwidth = "4MiB/s"});
  ASSERT_TRUE(kvd->wait_ready()) << kvd->log();
  Placing engine(*kvd);
  ASSERT_EQ(engine.store(0, 4), ErrorCode::kOk);
  EXPECT_EQ(engine.client.caches().poll({&engine.ticket, 1})[0], TicketState::kDone);
  ASSERT_TRUE(
      engine.client.caches()
          .load(engine.cache, Placing::digests(0, 4), Placing::blocks(4), kPatience, engine.ticket)
          .ok());
  EXPECT_EQ(engine.client.caches().poll({&engine.ticket, 1})[0], TicketState::kPending);
  kvd->signal(SIGKILL);
  EXPECT_TRUE(engine.client.caches().wait({&engine.ticket, 1}, kPatience).ok());
  EXPECT_EQ(engine.client.caches().poll({&engine.ticket, 1})[0], TicketState::kFailed);
  (void)kvd->wait();
  kvd.reset();
  const KvdProcess again(folder);
  ASSERT_TRUE(again.wait_ready()) << again.log();
  ASSERT_TRUE(poll_until([&] { return engine.client.ping(kPatience).ok(); }));
  EXPECT_EQ(engine.client.caches().lookup(engine.cache, Placing::digests(0, 4), kPatience).code(),
            ErrorCode::kUnavailable)
      << "the cache went with its daemon";
}

}  // namespace
}  // namespace kvd::test
