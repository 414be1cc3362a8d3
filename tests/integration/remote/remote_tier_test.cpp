// What the remote tier does on servers that are well.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <sys/socket.h>

#include <memory>

#include "kvd/tiers/remote/socket.hpp"
#include "tests/integration/remote/remote_world.hpp"
#include "tests/support/redis_server.hpp"

namespace kvd::remote {
namespace {

using disk::Fault;
using testing::Each;
using testing::ElementsAre;
using testing::SizeIs;

class Remote : public testing::Test {
 protected:
  void SetUp() override {
    KVD_NEEDS_REDIS();
    server_.emplace(folder_.file("redis"));
    world_.emplace(std::vector{server_->address()});
    ASSERT_TRUE(world_->wait_for(true));
  }
  test::RuntimeFolder folder_;
  std::optional<test::RedisServer> server_;
  std::optional<RemoteWorld> world_;
};

TEST_F(Remote, GivesBackWhatWasPut) {
  EXPECT_EQ(world_->get(1), Fault::kEmpty);
  EXPECT_EQ(world_->put(1), Fault::kNone);
  EXPECT_EQ(world_->get(1), Fault::kNone);
  EXPECT_EQ(world_->status().loads, 1u);
  EXPECT_EQ(world_->status().misses, 1u);
  EXPECT_EQ(world_->status().stores, 1u);
}

TEST_F(Remote, PutsNoBlockTwiceButRenewsItsTime) {
  EXPECT_EQ(world_->put(1), Fault::kNone);
  const std::string key = server_->keys().at(0);
  server_->say({"PEXPIRE", key, "5000"});
  EXPECT_EQ(world_->put(1), Fault::kNone);
  EXPECT_EQ(world_->status().stores, 1u);
  EXPECT_EQ(world_->status().renewals, 1u);
  EXPECT_GT(std::stol(server_->say({"PTTL", key}).substr(1)), 50'000);
  server_->say({"PEXPIRE", key, "5000"});
  EXPECT_EQ(world_->get(1), Fault::kNone);
  EXPECT_GT(std::stol(server_->say({"PTTL", key}).substr(1)), 50'000);
}

TEST_F(Remote, SaysWhichBlocksAreThere) {
  for (const std::uint64_t seed : {1u, 2u, 4u}) EXPECT_EQ(world_->put(seed), Fault::kNone);
  EXPECT_THAT(world_->find({1, 2, 4}), Each(true));
  EXPECT_THAT(world_->find({8, 9}), Each(false));
  EXPECT_THAT(world_->find({1, 2, 3, 4, 5}), ElementsAre(true, true, false, true, false));
  EXPECT_THAT(world_->find({}), SizeIs(0));
}

TEST_F(Remote, SharesNothingBetweenDomainsAndClasses) {
  EXPECT_EQ(world_->put(1), Fault::kNone);
  world_->domain = 2;
  EXPECT_THAT(world_->find({1}), Each(false));
  EXPECT_EQ(world_->get(1), Fault::kEmpty);
  world_->domain = 1;
  world_->shape.fingerprint = digest_of(8);
  EXPECT_EQ(world_->get(1), Fault::kEmpty);
}

TEST_F(Remote, MovesManyBlocksAtOnce) {
  constexpr std::uint64_t kBlocks = 48;
  std::vector<Memory> from, to(kBlocks, Memory(world_->shape));
  std::vector<Ticket> tickets;
  for (std::uint64_t i = 0; i < kBlocks; ++i) from.emplace_back(world_->shape, i);
  for (std::uint64_t i = 0; i < kBlocks; ++i) {
    tickets.push_back(world_->next());
    world_->tier().put(
        {tickets.back(), world_->shape, world_->key(i), from[i].whole(), world_->patience});
  }
  for (const Ticket ticket : tickets) EXPECT_EQ(world_->end_of(ticket).fault, Fault::kNone);
  tickets.clear();
  for (std::uint64_t i = 0; i < kBlocks; ++i) {
    tickets.push_back(world_->next());
    world_->tier().get(
        {tickets.back(), world_->shape, world_->key(i), to[i].groups(), world_->patience});
  }
  for (const Ticket ticket : tickets) EXPECT_EQ(world_->end_of(ticket).fault, Fault::kNone);
  EXPECT_TRUE(from == to);
}

TEST_F(Remote, SpreadsBlocksOverServersAndLosesOnlyTheShareOfOne) {
  test::RedisServer other(folder_.file("redis2"));
  RemoteWorld both({server_->address(), other.address()});
  ASSERT_TRUE(both.wait_for(true));
  std::vector<std::uint64_t> seeds;
  for (std::uint64_t i = 0; i < 40; ++i) seeds.push_back(i);
  for (const std::uint64_t seed : seeds) ASSERT_EQ(both.put(seed), Fault::kNone);
  const std::size_t first = server_->keys().size(), second = other.keys().size();
  EXPECT_EQ(first + second, seeds.size());
  EXPECT_GT(first, 8u);
  EXPECT_GT(second, 8u);
  EXPECT_THAT(both.find(seeds), Each(true));
  other.kill();
  std::size_t found = 0;
  for (const std::uint64_t seed : seeds) found += both.get(seed) == Fault::kNone ? 1u : 0u;
  EXPECT_EQ(found, first);
  // The order in which servers are named does not matter.
  other.start();
  RemoteWorld turned({other.address(), server_->address()});
  ASSERT_TRUE(turned.wait_for(true));
  found = 0;
  for (const std::uint64_t seed : seeds) found += turned.get(seed) == Fault::kNone ? 1u : 0u;
  EXPECT_EQ(found, first);
}

TEST_F(Remote, MeasuresTheRoundTrip) {
  RemoteWorld world({server_->address()}, {}, std::make_shared<SteadyClock>());
  ASSERT_TRUE(world.wait_for(true));
  EXPECT_THAT(world.find({1}), Each(false));
  EXPECT_GT(world.status().round_trip.count(), 0);
}

TEST(RemoteAddress, IsReachedByItsName) {
  UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&at), size), 0);
  ASSERT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&at), &size), 0);
  const std::string port = ":" + std::to_string(ntohs(at.sin_port));
  EXPECT_FALSE(dial("localhost" + port, test::kPatience).ok()) << "nobody listens";
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  // On a machine that gives the name two addresses, nobody listens at the other one.
  EXPECT_TRUE(dial("localhost" + port, test::kPatience).ok());
}

TEST(RemoteOptions, NamesWhatIsWrongWithAServer) {
  const auto opened = [](const std::string& server) {
    RemoteOptions options;
    options.servers = {server};
    return RemoteTier::open(options, std::make_shared<SteadyClock>()).ok();
  };
  for (const char* wrong :
       {"", "host", "host:", ":6379", "host:0", "host:70000", "host:x", "unix:", "unix:relative"}) {
    EXPECT_FALSE(opened(wrong)) << wrong;
  }
  EXPECT_FALSE(opened("unix:/" + std::string(200, 'x')));
}

}  // namespace
}  // namespace kvd::remote
