#include "kvd/daemon/sessions/replies.hpp"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "ipc/wire/codec.hpp"
#include "kvd/daemon/sessions/ring_peer.hpp"

namespace kvd::daemon {
namespace {

/// A command transport that keeps what it is to send.
class KeptReplies final : public transport::CommandServer {
 public:
  [[nodiscard]] int fd() const override { return -1; }
  [[nodiscard]] std::optional<transport::Incoming> receive() override { return std::nullopt; }
  void keep(transport::PeerId /*peer*/) override {}
  [[nodiscard]] std::optional<transport::Incoming> release(transport::PeerId /*peer*/) override {
    return std::nullopt;
  }
  Status send(transport::PeerId peer, std::span<const std::byte> frame) override {
    const auto reply = wire::decode_reply(frame);
    sent.emplace_back(peer, reply.ok() ? reply->code() : ErrorCode::kInternal);
    return {};
  }
  void set_trusted(transport::PeerId peer, bool trusted) override {
    if (!trusted) let_go.push_back(peer);
  }
  Result<bool> restore() override { return false; }
  void accept_again() override {}
  [[nodiscard]] std::uint64_t dropped() const override { return 0; }
  [[nodiscard]] const std::string& endpoint() const override { return endpoint_; }

  std::vector<std::pair<transport::PeerId, ErrorCode>> sent;
  std::vector<transport::PeerId> let_go;

 private:
  std::string endpoint_;
};

class RepliesTest : public testing::Test {
 protected:
  RepliesTest() {
    for (const std::uint32_t engine : {1u, 2u}) {
      Peer peer;
      peer.engine = EngineId(engine);
      peer.connection_of_commands = transport::PeerId(10 + engine);
      sessions_.add(std::move(peer));
    }
  }

  [[nodiscard]] core::ReplyTo expect(std::uint32_t engine) {
    ReplyHead head;
    head.command = wire::MessageType::kPing;
    return sut_.expect({EngineId(engine), transport::PeerId(10 + engine), head});
  }

  KeptReplies server_;
  SessionTable sessions_;
  Replies sut_{server_, sessions_};
};

TEST_F(RepliesTest, AReplyFindsItsCommandOnce) {
  const core::ReplyTo first = expect(1);
  const core::ReplyTo second = expect(2);
  ASSERT_NE(first, second);
  EXPECT_EQ(sut_.take(second)->engine, EngineId(2));
  EXPECT_FALSE(sut_.take(second).has_value());
  EXPECT_EQ(sut_.take(first)->peer, transport::PeerId(11));
}

TEST_F(RepliesTest, WhatAnEndedSessionWaitsForIsAnsweredAsStale) {
  const core::ReplyTo gone = expect(1);
  const core::ReplyTo stays = expect(2);
  sut_.end(*sessions_.find(EngineId(1)));
  ASSERT_EQ(server_.sent.size(), 1u);
  EXPECT_EQ(server_.sent[0], std::pair(transport::PeerId(11), ErrorCode::kStaleSession));
  EXPECT_EQ(server_.let_go, std::vector{transport::PeerId(11)});
  EXPECT_FALSE(sut_.take(gone).has_value());
  EXPECT_TRUE(sut_.take(stays).has_value());
}

TEST_F(RepliesTest, ARingThatIsNoMoreSwallowsItsReply) {
  ReplyHead head;
  head.command = wire::MessageType::kPing;
  EXPECT_TRUE(sut_.answer(ring_peer(EngineId(1)), head, core::Done{}).ok());
  EXPECT_TRUE(sut_.answer(ring_peer(EngineId(7)), head, core::Done{}).ok());
  EXPECT_TRUE(server_.sent.empty());
}

}  // namespace
}  // namespace kvd::daemon
