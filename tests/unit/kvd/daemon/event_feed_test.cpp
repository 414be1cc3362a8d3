#include "kvd/daemon/sessions/event_feed.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "ipc/vocabulary/clock.hpp"
#include "tests/unit/kvd/daemon/small_controller.hpp"

namespace kvd::daemon {
namespace {

class EventFeedTest : public testing::Test {
 protected:
  EventFeedTest() {
    core::Attach attach;
    attach.name = "engine";
    attach.domain = DomainId(1);
    engine_ = sut_.attach(attach).value().engine;
  }

  [[nodiscard]] core::Command ping(std::uint64_t number) const {
    return {engine_, core::ReplyTo(number), clock_.now() + std::chrono::seconds(1), core::Ping{}};
  }

  ManualClock clock_;
  EventFeed sut_{small_controller(), clock_};
  EngineId engine_;
};

TEST_F(EventFeedTest, AnEventFedWhileAnEffectIsCarriedOutWaitsItsTurn) {
  std::vector<std::uint64_t> replies;
  int depth = 0;
  int deepest = 0;
  sut_.carry_out_with([&](const core::Effect& effect) {
    const auto* reply = std::get_if<core::Reply>(&effect);
    if (!reply) return;
    deepest = std::max(deepest, ++depth);
    replies.push_back(reply->reply_to.value);
    if (reply->reply_to == core::ReplyTo(1)) {
      sut_.feed(ping(2));
      sut_.feed(ping(3));
      EXPECT_EQ(replies.size(), 1u);
    }
    --depth;
  });
  sut_.feed(ping(1));
  EXPECT_EQ(replies, (std::vector<std::uint64_t>{1, 2, 3}));
  EXPECT_EQ(deepest, 1);
}

TEST_F(EventFeedTest, TheControllerHearsOfAnEventAtTheTimeItWasFed) {
  std::vector<core::Reply> replies;
  sut_.carry_out_with([&](const core::Effect& effect) {
    if (const auto* reply = std::get_if<core::Reply>(&effect)) replies.push_back(*reply);
  });
  sut_.feed(ping(1));
  clock_.advance(std::chrono::seconds(5));
  EXPECT_EQ(sut_.now(), clock_.now());
  EXPECT_EQ(sut_.status().engines.size(), 1u);
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<core::Done>(replies[0].body));
}

}  // namespace
}  // namespace kvd::daemon
