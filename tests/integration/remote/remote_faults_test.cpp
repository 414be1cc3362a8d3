// What the remote tier does when servers or the network are not well: no wrong byte, no long wait,
// and it comes back by itself.
#include <gmock/gmock.h>

#include <chrono>
#include <csignal>

#include "tests/integration/remote/byte_proxy.hpp"
#include "tests/integration/remote/remote_world.hpp"
#include "tests/support/redis_server.hpp"

namespace kvd::remote {
namespace {

using disk::Fault;
using testing::HasSubstr;

class RemoteFaults : public testing::Test {
 protected:
  void SetUp() override {
    KVD_NEEDS_REDIS();
    start({});
  }
  void start(std::vector<std::string> more, const std::string& password = {}) {
    world_.reset();
    proxy_.reset();
    ++number_;
    server_.emplace(folder_.file("redis" + std::to_string(number_)), std::move(more));
    proxy_.emplace(folder_.file("proxy" + std::to_string(number_)), server_->socket());
    world_.emplace(std::vector{proxy_->address()}, password);
  }
  [[nodiscard]] bool says(const std::string& word) {
    return world_->wait_until(
        [&] { return world_->status().why.message.find(word) != std::string::npos; });
  }
  test::RuntimeFolder folder_;
  int number_ = 0;
  std::optional<test::RedisServer> server_;
  std::optional<test::ByteProxy> proxy_;
  std::optional<RemoteWorld> world_;
};

TEST_F(RemoteFaults, AServerThatIsOffIsAMissAtOnce) {
  ASSERT_TRUE(world_->wait_for(true));
  server_->kill();
  ASSERT_TRUE(world_->wait_for(false));
  EXPECT_EQ(world_->get(1), Fault::kClosed);
  EXPECT_EQ(world_->put(1), Fault::kClosed);
  EXPECT_FALSE(world_->find({1}).at(0));
}

TEST_F(RemoteFaults, AStoppedServerIsOffSoonAndBackWithinTenSeconds) {
  ASSERT_TRUE(world_->wait_for(true));
  ASSERT_EQ(world_->put(1), Fault::kNone);
  server_->process().signal(SIGSTOP);
  world_->time_passes = true;
  const TimePoint began = world_->time->now();
  EXPECT_EQ(world_->get(1), Fault::kClosed);
  EXPECT_LT(world_->time->now() - began, std::chrono::seconds(1));
  EXPECT_FALSE(world_->status().on);
  EXPECT_THAT(world_->status().why.message, HasSubstr("says nothing"));
  server_->process().signal(SIGCONT);
  const TimePoint back = world_->time->now();
  ASSERT_TRUE(world_->wait_for(true));
  EXPECT_LT(world_->time->now() - back, std::chrono::seconds(10));
  world_->time_passes = false;
  EXPECT_EQ(world_->get(1), Fault::kNone);
}

TEST_F(RemoteFaults, AKilledServerComesBackEmpty) {
  ASSERT_TRUE(world_->wait_for(true));
  ASSERT_EQ(world_->put(1), Fault::kNone);
  server_->kill();
  ASSERT_TRUE(world_->wait_for(false));
  server_->start();
  ASSERT_TRUE(world_->wait_for(true));
  EXPECT_EQ(world_->get(1), Fault::kEmpty);
  EXPECT_EQ(world_->put(1), Fault::kNone);
  EXPECT_EQ(world_->get(1), Fault::kNone);
  ASSERT_GE(world_->changes.size(), 3u);
  EXPECT_FALSE(world_->changes[1].on);
  EXPECT_TRUE(world_->changes.back().on);
  EXPECT_EQ(world_->changes.back().why.code, ErrorCode::kOk);
  EXPECT_EQ(world_->status().why.code, ErrorCode::kOk);
}

TEST_F(RemoteFaults, AnIdleServerThatStopsIsNoticed) {
  ASSERT_TRUE(world_->wait_for(true));
  server_->process().signal(SIGSTOP);
  EXPECT_TRUE(world_->wait_for(false));
}

TEST_F(RemoteFaults, ALateServerIsWaitedFor) {
  ASSERT_TRUE(world_->wait_for(true));
  ASSERT_EQ(world_->put(1), Fault::kNone);
  proxy_->delay_ms = 100;
  Memory memory(world_->shape);
  const Ticket ticket = world_->next();
  world_->tier().get({ticket, world_->shape, world_->key(1), memory.groups(), world_->patience});
  world_->time->advance(std::chrono::milliseconds(600));
  EXPECT_EQ(world_->end_of(ticket).fault, Fault::kNone);
  EXPECT_TRUE(world_->status().on);
}

TEST_F(RemoteFaults, AGetWhosePatienceEndsLeavesItsMemoryAlone) {
  ASSERT_TRUE(world_->wait_for(true));
  ASSERT_EQ(world_->put(1), Fault::kNone);
  ASSERT_EQ(world_->put(2), Fault::kNone);
  server_->process().signal(SIGSTOP);
  Memory memory(world_->shape);
  const Ticket ticket = world_->next();
  world_->tier().get(
      {ticket, world_->shape, world_->key(1), memory.groups(), std::chrono::milliseconds(50)});
  world_->time->advance(std::chrono::milliseconds(60));
  EXPECT_EQ(world_->end_of(ticket).fault, Fault::kTimedOut);
  server_->process().signal(SIGCONT);
  EXPECT_EQ(world_->get(2), Fault::kNone);  // its value comes after the other's
  EXPECT_EQ(memory, Memory(world_->shape));
}

TEST_F(RemoteFaults, AConnectionThatEndsInAnyPlaceIsAMissAndComesBack) {
  ASSERT_TRUE(world_->wait_for(true));
  ASSERT_EQ(world_->put(1), Fault::kNone);
  for (const long after : {0L, 1L, 5L, 9L, 100L, 4106L, 70'000L, 214'105L, 214'106L}) {
    proxy_->cut_after = after;
    EXPECT_EQ(world_->get(1), Fault::kClosed) << after;
    ASSERT_TRUE(world_->wait_for(true)) << after;
  }
  EXPECT_EQ(world_->get(1), Fault::kNone);
}

TEST_F(RemoteFaults, GarbageIsAMissAndTheServerOff) {
  ASSERT_TRUE(world_->wait_for(true));
  ASSERT_EQ(world_->put(1), Fault::kNone);
  proxy_->garbage = true;
  EXPECT_EQ(world_->get(1), Fault::kClosed);
  EXPECT_TRUE(says("does not speak as Redis does"));
  proxy_->garbage = false;
  ASSERT_TRUE(world_->wait_for(true));
  EXPECT_EQ(world_->get(1), Fault::kNone);
}

TEST_F(RemoteFaults, AValueThatIsNotTheBlocksIsAMissAndMakesWay) {
  ASSERT_TRUE(world_->wait_for(true));
  ASSERT_EQ(world_->put(1), Fault::kNone);
  const std::string first = server_->keys().at(0);
  struct Spoilt {
    std::vector<std::string> by;
    Fault fault;
  };
  ASSERT_EQ(world_->put(2), Fault::kNone);
  std::string second;
  for (const std::string& name : server_->keys()) second = name == first ? second : name;
  const Spoilt all[] = {
      {{"SETRANGE", first, "9000", "\x1"}, Fault::kCorruptPayload},
      {{"SETRANGE", first, "130", "\x1"}, Fault::kCorruptHeader},
      {{"SET", first, "short"}, Fault::kTruncated},
      {{"SET", first, ""}, Fault::kTruncated},
      {{"APPEND", first, "more"}, Fault::kTruncated},
      {{"COPY", second, first, "REPLACE"}, Fault::kOtherKey},
  };
  for (const Spoilt& spoilt : all) {
    server_->say(spoilt.by);
    EXPECT_EQ(world_->get(1), spoilt.fault) << spoilt.by[0];
    EXPECT_EQ(world_->get(1), Fault::kEmpty) << spoilt.by[0];
    ASSERT_EQ(world_->put(1), Fault::kNone);
    ASSERT_EQ(world_->get(1), Fault::kNone);
  }
  server_->say({"DEL", first});
  server_->say({"LPUSH", first, "a"});
  EXPECT_EQ(world_->get(1), Fault::kOtherKey);
  EXPECT_EQ(world_->put(1), Fault::kNone);
  EXPECT_EQ(world_->get(1), Fault::kNone);
}

TEST_F(RemoteFaults, AFullServerIsToldAndStillRead) {
  start({"--maxmemory", "3mb", "--maxmemory-policy", "noeviction"});
  ASSERT_TRUE(world_->wait_for(true));
  ASSERT_EQ(world_->put(1), Fault::kNone);
  std::uint64_t seed = 2;
  while (seed < 40 && world_->put(seed) == Fault::kNone) ++seed;
  ASSERT_LT(seed, 40u);
  EXPECT_EQ(world_->put(100), Fault::kFull);
  EXPECT_EQ(world_->get(1), Fault::kNone);
  EXPECT_TRUE(world_->status().on);
  EXPECT_EQ(world_->status().why.code, ErrorCode::kOutOfMemory);
  EXPECT_THAT(world_->status().why.message, HasSubstr("maxmemory-policy"));
}

TEST_F(RemoteFaults, AWrongPasswordIsTold) {
  start({"--requirepass", "right"}, "wrong");
  EXPECT_TRUE(says("remote.password_file"));
  EXPECT_EQ(world_->status().why.code, ErrorCode::kPermissionDenied);
  start({"--requirepass", "right"});
  EXPECT_TRUE(says("remote.password_file"));
  start({}, "needless");
  EXPECT_TRUE(says("remote.password_file"));
  start({"--requirepass", "right"}, "right");
  ASSERT_TRUE(world_->wait_for(true));
  EXPECT_EQ(world_->put(1), Fault::kNone);
}

TEST_F(RemoteFaults, AClusterIsTold) {
  start({"--cluster-enabled", "yes", "--dir", folder_.path(), "--port", "0"});
  EXPECT_TRUE(says("servers that run alone"));
  EXPECT_EQ(world_->status().why.code, ErrorCode::kUnsupported);
}

TEST_F(RemoteFaults, AReplicaIsTold) {
  start({"--replicaof", "127.0.0.1", "1"});
  EXPECT_TRUE(says("primary"));
}

}  // namespace
}  // namespace kvd::remote
