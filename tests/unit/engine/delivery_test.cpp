#include "client_lib/engine/serve/delivery.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/engine/recording_sink.hpp"

namespace kvd::engine {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::IsEmpty;

class DeliveryTest : public testing::Test {
 protected:
  ManualClock clock_{TimePoint(1s)};
  Delivery delivery_{clock_};
  std::shared_ptr<RecordingSink> sink_ = std::make_shared<RecordingSink>();

  void make(Token token) { delivery_.token(1, {token, "", std::nullopt}); }
  [[nodiscard]] std::vector<Token> delivered() const { return sink_->now().tokens; }
};

TEST_F(DeliveryTest, ReleasesOneTokenEachInterval) {
  delivery_.open(1, sink_, 100ms);
  for (const Token token : {10U, 11U, 12U}) make(token);
  EXPECT_THAT(delivered(), ElementsAre(10));
  EXPECT_EQ(delivery_.release_due(), TimePoint(1100ms));
  clock_.advance(99ms);
  (void)delivery_.release_due();
  EXPECT_THAT(delivered(), ElementsAre(10));
  clock_.advance(1ms);
  EXPECT_EQ(delivery_.release_due(), TimePoint(1200ms));
  EXPECT_THAT(delivered(), ElementsAre(10, 11));
  clock_.advance(500ms);
  EXPECT_EQ(delivery_.release_due(), std::nullopt);
  EXPECT_THAT(delivered(), ElementsAre(10, 11, 12));
}

TEST_F(DeliveryTest, HidesAPauseThatTheDepositCovers) {
  delivery_.open(1, sink_, 100ms);
  for (const Token token : {10U, 11U, 12U, 13U}) make(token);
  for (std::size_t seen = 1; seen <= 4; ++seen) {  // nothing is made for 300 ms
    (void)delivery_.release_due();
    EXPECT_EQ(delivered().size(), seen);
    clock_.advance(100ms);
  }
}

TEST_F(DeliveryTest, WithoutAnSloTokensComeAsTheyAreMade) {
  delivery_.open(1, sink_, 0ms);
  for (const Token token : {10U, 11U, 12U}) make(token);
  EXPECT_THAT(delivered(), ElementsAre(10, 11, 12));
}

TEST_F(DeliveryTest, GivesTheRestAtTheEnd) {
  delivery_.open(1, sink_, 100ms);
  for (const Token token : {10U, 11U, 12U}) make(token);
  delivery_.end(1, FinishReason::kLength, "tail");
  EXPECT_THAT(delivered(), ElementsAre(10, 11, 12));
  EXPECT_EQ(sink_->now().reason, FinishReason::kLength);
  EXPECT_EQ(sink_->now().text, "tail");
}

TEST_F(DeliveryTest, ForgetsWhoHasGone) {
  delivery_.open(1, sink_, 100ms);
  delivery_.drop(1);
  make(10);
  delivery_.end(1, FinishReason::kStop, "");
  delivery_.fail(1, make_error(ErrorCode::kInternal, ""));
  EXPECT_THAT(delivered(), IsEmpty());
  EXPECT_FALSE(sink_->now().reason || sink_->now().error);
}

TEST(DeliveryThread, ReleasesByItself) {
  const SteadyClock clock;
  Delivery delivery(clock);
  delivery.start();
  const auto sink = std::make_shared<RecordingSink>();
  delivery.open(1, sink, 2ms);
  for (Token token = 0; token < 20; ++token) delivery.token(1, {token, "", std::nullopt});
  EXPECT_TRUE(sink->wait([](const auto& record) { return record.tokens.size() == 20; }));
}

}  // namespace
}  // namespace kvd::engine
