// Tensor-parallel groups: the daemon in this process, the ranks on threads of this process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "client_lib/examples/pattern_engine.hpp"
#include "tests/support/daemon_thread.hpp"
#include "tests/support/raw_engine.hpp"

namespace kvd::test {
namespace {

using kvd_client::Client;
using kvd_client::ErrorCode;
using testing::HasSubstr;

constexpr std::uint64_t kGroup = 7;

kvd_client::Options options_of(DaemonThread& daemon, std::uint32_t rank, std::uint32_t ranks = 2,
                               std::uint64_t group = kGroup) {
  kvd_client::Options options;
  options.endpoint = daemon.endpoint();
  options.engine_name = "rank-" + std::to_string(rank);
  options.shape = {4, 2, 16, 1024};
  options.group = {group, ranks, rank};
  return options;
}

Client opened(const kvd_client::Options& options) {
  auto client = Client::open(options);
  KVD_CHECK(client.ok(), client.ok() ? "" : client.error().message.c_str());
  return std::move(*client);
}

TEST(DaemonGroup, StartsOnceItsLastRankIsThere) {
  DaemonThread daemon;
  Client first = opened(options_of(daemon, 0));
  EXPECT_TRUE(first.ping(kPatience).ok());
  const auto early = first.submit({1, 20, 2, {}, {}}, kPatience);
  ASSERT_EQ(early.code(), ErrorCode::kWouldBlock);
  EXPECT_THAT(early.error().message, HasSubstr("1 of 2 ranks"));
  EXPECT_EQ(first.step({}, 0, 0, kPatience).code(), ErrorCode::kWouldBlock);
  const Client second = opened(options_of(daemon, 1));
  EXPECT_TRUE(first.submit({1, 20, 2, {}, {}}, kPatience).ok());
  const auto status = daemon.status();
  ASSERT_EQ(status.engines.size(), 1u) << "one engine, whatever the processes";
  EXPECT_EQ(status.engines[0].ranks.count, 2u);
  EXPECT_EQ(first.session()->layer_groups, 2u) << "of this rank";
}

TEST(DaemonGroup, RanksGetTheSameRunListAndSlotsOfTheirOwn) {
  DaemonThread daemon;
  Client first = opened(options_of(daemon, 0));
  Client second = opened(options_of(daemon, 1));
  ASSERT_TRUE(second.submit({1, 20, 2, {}, {}}, kPatience).ok()) << "any rank submits";
  std::optional<kvd_client::StepResult> a, b;
  ASSERT_TRUE(poll_until([&] {
    const auto one = first.step({}, 0, 0, kPatience);
    const auto two = second.step({}, 0, 0, kPatience);
    if (!one.ok() || !two.ok()) return false;
    a = *one;
    b = *two;
    return !a->run.empty();
  }));
  ASSERT_EQ(b->run.size(), 1u);
  EXPECT_EQ(a->iteration, b->iteration);
  EXPECT_EQ(a->run[0].tokens, b->run[0].tokens);
  // Four blocks each; what one writes the other does not see.
  for (std::uint32_t group = 0; group < 2; ++group) {
    for (std::uint32_t block = 0; block < 2; ++block) {
      const auto mine = first.block_address(0, group, block);
      const auto other = second.block_address(0, group, block);
      ASSERT_TRUE(mine.ok() && other.ok());
      **mine = std::byte{0xA};
      **other = std::byte{0xB};
    }
  }
  for (std::uint32_t group = 0; group < 2; ++group) {
    for (std::uint32_t block = 0; block < 2; ++block) {
      EXPECT_EQ(**first.block_address(0, group, block), std::byte{0xA});
    }
  }
  EXPECT_EQ(first.block_address(0, 2, 0).code(), ErrorCode::kNotFound) << "that is the other's";
}

TEST(DaemonGroup, RefusesRanksThatDoNotFit) {
  DaemonThread daemon;
  const Client first = opened(options_of(daemon, 0));
  EXPECT_EQ(Client::open(options_of(daemon, 0)).code(), ErrorCode::kInvalidArgument) << "taken";
  EXPECT_EQ(Client::open(options_of(daemon, 1, 3)).code(), ErrorCode::kInvalidArgument);
  auto other = options_of(daemon, 1);
  other.shape.layers = 8;
  const auto shape = Client::open(other);
  ASSERT_EQ(shape.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(shape.error().message, HasSubstr("alike"));
  other.shape = {};
  EXPECT_EQ(Client::open(other).code(), ErrorCode::kInvalidArgument) << "regions only";
  EXPECT_EQ(Client::open(options_of(daemon, 1, 1)).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(Client::open(options_of(daemon, 2, 2)).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(Client::open(options_of(daemon, 1, 2, 0)).code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(Client::open(options_of(daemon, 1)).ok()) << "and one that does, fits";
}

TEST(DaemonGroup, AnotherNumberIsAnotherGroup) {
  DaemonThread daemon;
  const Client one = opened(options_of(daemon, 0, 2, 1));
  const Client two = opened(options_of(daemon, 0, 2, 2));
  EXPECT_EQ(daemon.status().engines.size(), 2u);
}

TEST(DaemonGroup, RentsNoRegions) {
  DaemonThread daemon;
  Client first = opened(options_of(daemon, 0));
  const Client second = opened(options_of(daemon, 1));
  EXPECT_EQ(first.allocate_region(1 << 20, kPatience).code(), ErrorCode::kUnsupported);
}

TEST(DaemonGroup, EndsWithTheFirstRankThatLeavesAndFreesWithTheLast) {
  DaemonThread daemon;
  {
    Client second = opened(options_of(daemon, 1));
    {
      Client first = opened(options_of(daemon, 0));
      ASSERT_TRUE(first.submit({1, 20, 2, {}, {}}, kPatience).ok());
      ASSERT_TRUE(poll_until([&] {
        const auto step = first.step({}, 0, 0, kPatience);
        return second.step({}, 0, 0, kPatience).ok() && step.ok() && !step->run.empty();
      }));
    }
    ASSERT_TRUE(daemon.wait_until([](const auto& status) { return status.engines.size() == 1; }));
    EXPECT_FALSE(all_free(daemon.status())) << "rank 1 still maps its slots";
    EXPECT_EQ(second.wait(99, kPatience).code(), ErrorCode::kUnavailable) << "poisoned";
  }
  EXPECT_TRUE(daemon.wait_all_free());
  const auto status = daemon.status();
  EXPECT_TRUE(status.engines.empty());
  EXPECT_EQ(status.counters.engines_died, 0u) << "both said goodbye";
  EXPECT_TRUE(Client::open(options_of(daemon, 0)).ok()) << "its number is free again";
}

// Frames of a rank whose group has ended get their turn as everybody's do.
TEST(DaemonGroup, ARankThatOnlyTalksOnKeepsNobodyFromTheDaemon) {
  DaemonThread daemon;
  const auto attach = [&](std::uint32_t rank) {
    auto connection = transport::connect_attach(daemon.endpoint(), kPatience);
    KVD_CHECK(connection.ok(), "no connection");
    wire::Hello hello;
    hello.shape = {4, 2, 16, 0, 1024};
    hello.abilities = wire::kJoinsGroup;
    wire::JoinGroup join;
    join.group = kGroup;
    join.ranks = 2;
    join.rank = rank;
    KVD_CHECK(connection->send(wire::seal(hello)).ok(), "no hello");
    KVD_CHECK(connection->send(wire::seal(join)).ok(), "no join");
    KVD_CHECK(connection->receive(kPatience).ok(), "no welcome");
    return std::move(*connection);
  };
  auto first = attach(0);
  auto second = attach(1);
  wire::Goodbye goodbye;
  ASSERT_TRUE(first.send(wire::seal(goodbye)).ok());
  std::atomic<bool> stop = false;
  std::thread flood([&] {
    wire::SlabMapped mapped;
    while (!stop) (void)second.send(wire::seal(mapped)).ok();
  });
  Client other = opened([&] {
    auto options = options_of(daemon, 0);
    options.group = {};
    return options;
  }());
  EXPECT_TRUE(other.ping(kPatience).ok());
  EXPECT_EQ(daemon.status().counters.engines_died, 0u);
  stop = true;
  flood.join();
  ASSERT_TRUE(second.send(wire::seal(goodbye), {}, kPatience).ok());
  EXPECT_TRUE(daemon.wait_until([](const auto& status) { return status.engines.size() == 1; }));
}

TEST(DaemonGroup, AHelloThatAnnouncesAGroupAndSendsNoneIsRefused) {
  DaemonThread daemon;
  auto connection = transport::connect_attach(daemon.endpoint(), kPatience);
  ASSERT_TRUE(connection.ok());
  wire::Hello hello;
  hello.abilities = wire::kJoinsGroup;
  ASSERT_TRUE(connection->send(wire::seal(hello)).ok());
  wire::Goodbye goodbye;
  ASSERT_TRUE(connection->send(wire::seal(goodbye)).ok());
  const auto frame = connection->receive(kPatience);
  ASSERT_TRUE(frame.ok());
  const auto answer = wire::decode_attach(frame->bytes());
  ASSERT_TRUE(answer.ok());
  ASSERT_TRUE(std::holds_alternative<wire::Refused>(*answer));
  EXPECT_THAT(std::string(wire::text(std::get<wire::Refused>(*answer).message)),
              HasSubstr("join group"));
}

kvd_pattern::PatternOptions pattern(std::uint32_t rank) {
  kvd_pattern::PatternOptions options;
  options.shape = {6, 1, 16, 4096};
  options.requests = 12;
  options.prompt = 40;
  options.new_tokens = 40;
  options.ttft_slo = options.tbt_slo = std::chrono::milliseconds(1);
  options.group = {kGroup, 3, rank};
  options.json = true;
  return options;
}

/// Three ranks on threads of their own, with a transport each.
std::vector<kvd_pattern::Summary> run_ranks(DaemonThread& daemon, bool corrupt_last) {
  std::vector<kvd_pattern::Summary> summaries(3);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      auto what = pattern(rank);
      what.corrupt_once = corrupt_last && rank == 2;
      auto how = options_of(daemon, rank, 3);
      how.shape = what.shape;
      if (rank == 1) how.transport = kvd_client::Transport::kRing;
      kvd_pattern::PatternEngine engine(opened(how), what);
      const auto status = engine.run();
      EXPECT_TRUE(status.ok()) << rank << ": " << status.error().message;
      summaries[rank] = engine.summary();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return summaries;
}

// 12 requests of 5 blocks of 6 layers in 3 ranks, 64 KiB each: 67 MiB in 16 MiB of HBM.
TEST(DaemonGroup, RanksRotateTogetherAndEveryByteIsTheByteWritten) {
  DaemonThread daemon([](daemon::Config& config) { config.dram = 64 * kMiB; });
  for (const kvd_pattern::Summary& summary : run_ranks(daemon, false)) {
    EXPECT_EQ(summary.pattern_errors, 0u);
    EXPECT_EQ(summary.requests, 12u);
    EXPECT_EQ(summary.restarts, 0u);
    EXPECT_GT(summary.bytes_checked, 0u);
  }
  EXPECT_GT(daemon.status().counters.rotations_out, 0u);
  EXPECT_TRUE(daemon.wait_all_free());
}

TEST(DaemonGroup, ACorruptedByteIsFoundByTheRankThatHasIt) {
  DaemonThread daemon([](daemon::Config& config) { config.dram = 64 * kMiB; });
  const auto summaries = run_ranks(daemon, true);
  EXPECT_EQ(summaries[0].pattern_errors, 0u);
  EXPECT_EQ(summaries[1].pattern_errors, 0u);
  EXPECT_GT(summaries[2].pattern_errors, 0u);
}

}  // namespace
}  // namespace kvd::test
