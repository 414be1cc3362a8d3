// What the remote tier does when a server lies, or keeps it busy: no memory is touched after its
// request has ended, and the server goes off.
#include <gmock/gmock.h>

#include <chrono>
#include <optional>
#include <vector>

#include "tests/integration/remote/remote_world.hpp"
#include "tests/integration/remote/scripted_server.hpp"

namespace kvd::remote {
namespace {

using disk::Fault;
using std::chrono::milliseconds;
using testing::HasSubstr;

class RemoteLies : public testing::Test {
 protected:
  void SetUp() override {
    server_.greet();
    ASSERT_TRUE(world_->wait_for(true));
  }
  /// Asks for a block, and waits `patience` for the answer.
  Ticket get(Memory& memory, Nanoseconds patience) {
    const Ticket ticket = world_->next();
    world_->tier().get({ticket, world_->shape, world_->key(1), memory.groups(), patience});
    return ticket;
  }
  [[nodiscard]] std::string value_begins() const {
    return "$" + std::to_string(value_bytes(world_->shape).value) + "\r\n";
  }
  /// The server says so, and the tier has read it.
  [[nodiscard]] bool hears(const std::string& words) {
    const Bytes before = world_->status().in;
    server_.say(words);
    return test::poll_until([&] { return world_->status().in > before || !world_->status().on; });
  }

  const test::RuntimeFolder folder_;
  test::ScriptedServer server_{folder_.file("server")};
  std::optional<RemoteWorld> world_{std::in_place, std::vector{server_.address()}};
};

TEST_F(RemoteLies, ABlockIsNotGivenBackWhileItIsSent) {
  for (const char* reply : {"+OK\r\n", "-OOM it is full\r\n"}) {
    world_->shape.group_bytes = Bytes(1'000'000);  // more than the socket takes
    const Memory memory(world_->shape, 1);
    const Ticket ticket = world_->next();
    world_->tier().put({ticket, world_->shape, world_->key(1), memory.whole(), world_->patience});
    server_.read_until("PEXPIRE");
    server_.say(":0\r\n");
    server_.read_until("SET");
    server_.say(reply);
    EXPECT_EQ(world_->end_of(ticket).fault, Fault::kClosed) << reply;
    ASSERT_FALSE(world_->status().on);
    world_->time->advance(std::chrono::seconds(5));
    server_.greet();
    ASSERT_TRUE(world_->wait_for(true));
  }
}

TEST_F(RemoteLies, AServerThatSaysNothingIsOffWhateverElseItIsAsked) {
  Memory first(world_->shape), second(world_->shape);
  for (Memory* memory : {&first, &second}) {
    (void)get(*memory, world_->patience);
    server_.read_until("PX");
    world_->time->advance(milliseconds(400));
  }
  ASSERT_TRUE(test::poll_until([&] { return !world_->status().on; }));
  EXPECT_THAT(world_->status().why.message, HasSubstr("says nothing"));
}

TEST_F(RemoteLies, AValueThatNeverEndsTurnsTheServerOff) {
  Memory memory(world_->shape);
  const Ticket ticket = get(memory, milliseconds(50));
  server_.read_until("PX");
  ASSERT_TRUE(hears(value_begins()));
  const TimePoint began = world_->time->now();
  while (world_->status().on && world_->time->now() - began < std::chrono::seconds(60)) {
    world_->time->advance(milliseconds(500));
    if (!hears("x")) break;
  }
  EXPECT_FALSE(world_->status().on);
  EXPECT_GT(world_->time->now() - began, std::chrono::seconds(19));
  EXPECT_THAT(world_->status().why.message, HasSubstr("over 20 s"));
  EXPECT_EQ(world_->end_of(ticket).fault, Fault::kTimedOut);
}

TEST_F(RemoteLies, ALengthBeyondAllBoundsIsPassedOverOrRefused) {
  for (const char* length : {"$1099511627777\r\n", "$9223372036854775807\r\n", "$-2\r\n",
                             "$99999999999999999999\r\n", "*3\r\n", ":1\r\n", "\r\n"}) {
    Memory memory(world_->shape);
    const Ticket ticket = get(memory, world_->patience);
    server_.read_until("PX");
    server_.say(length);
    EXPECT_EQ(world_->end_of(ticket).fault, Fault::kClosed) << length;
    world_->time->advance(std::chrono::seconds(5));
    server_.greet();
    ASSERT_TRUE(world_->wait_for(true));
  }
}

TEST_F(RemoteLies, AServerThatSendsElsewhereIsOff) {
  Memory memory(world_->shape);
  const Ticket ticket = get(memory, world_->patience);
  server_.read_until("PX");
  server_.say("-MOVED 1 10.0.0.1:6379\r\n");
  EXPECT_EQ(world_->end_of(ticket).fault, Fault::kClosed);
  EXPECT_EQ(world_->status().why.code, ErrorCode::kUnsupported);
  EXPECT_THAT(world_->status().why.message, HasSubstr("10.0.0.1"));
}

TEST_F(RemoteLies, WordsThatNobodyAskedForTurnItOff) {
  server_.say("+OK\r\n");
  ASSERT_TRUE(world_->wait_for(false));
  EXPECT_THAT(world_->status().why.message, HasSubstr("does not speak as Redis does"));
}

TEST_F(RemoteLies, ALineWithoutEndTurnsItOff) {
  Memory memory(world_->shape);
  const Ticket ticket = get(memory, world_->patience);
  server_.say("+" + std::string(8000, 'x'));
  EXPECT_EQ(world_->end_of(ticket).fault, Fault::kClosed);
}

TEST_F(RemoteLies, EachRequestEndsInItsTimeWhateverIsBeforeIt) {
  std::vector<Memory> memory(20, Memory(world_->shape));
  for (int i = 0; i < 18; ++i) (void)get(memory[static_cast<std::size_t>(i)], world_->patience);
  const Ticket hasty = get(memory[18], milliseconds(100));
  world_->time->advance(milliseconds(200));
  EXPECT_EQ(world_->end_of(hasty).fault, Fault::kTimedOut);
  EXPECT_TRUE(world_->status().on);
}

TEST_F(RemoteLies, MemoryIsLeftAloneOnceTheTierHasEnded) {
  Memory memory(world_->shape);
  const Memory before = memory;
  (void)get(memory, world_->patience);
  server_.read_until("PX");
  ASSERT_TRUE(hears(value_begins()));
  world_.reset();
  server_.say(std::string(10'000, 'x'));
  EXPECT_EQ(memory, before);
}

}  // namespace
}  // namespace kvd::remote
