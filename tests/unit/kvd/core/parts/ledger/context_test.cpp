// What every part sees of the event in hand: policies that change live, and effects in their order.
#include "kvd/core/ledger/context.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/kvd/core/parts/parts_fixture.hpp"

namespace kvd::core {
namespace {

class ContextTest : public ::testing::Test {
 protected:
  ContextTest() { sut.effects = &effects; }

  template <class E>
  const E& effect(std::size_t i) {
    return std::get<E>(effects.at(i));
  }
  Tuning tuned(const char* rotation, const char* admission, const char* placement) {
    Tuning wanted = sut.tuning;
    wanted.rotation.policy = rotation;
    wanted.admission.policy = admission;
    wanted.placement.policy = placement;
    return wanted;
  }

  Context sut{small_config()};
  std::vector<Effect> effects;
};

TEST_F(ContextTest, StartsWithThePoliciesOfItsConfiguration) {
  EXPECT_EQ(sut.rotation->name(), sut.config.tuning.rotation.policy);
  EXPECT_EQ(sut.admission->name(), sut.config.tuning.admission.policy);
  EXPECT_EQ(sut.placement->name(), sut.config.tuning.placement.policy);
  EXPECT_EQ(sut.load->name(), sut.config.tuning.load.policy);
}

TEST_F(ContextTest, PoliciesChangeWithTheTuning) {
  Tuning wanted = tuned("fcfs", "layerkv", "orbitflow");
  wanted.load.policy = "always";
  sut.retune(wanted);
  EXPECT_EQ(sut.rotation->name(), "fcfs");
  EXPECT_EQ(sut.admission->name(), "layerkv");
  EXPECT_EQ(sut.placement->name(), "orbitflow");
  EXPECT_EQ(sut.load->name(), "always");
  EXPECT_EQ(sut.config.tuning.rotation.policy, "unified") << "where it started";
}

TEST_F(ContextTest, APolicyThatIsKeptStaysTheSameObject) {
  const auto* const rotation = sut.rotation.get();
  const auto* const admission = sut.admission.get();
  Tuning wanted = sut.tuning;
  wanted.rotation.alpha = 7;
  wanted.admission.policy = "layerkv";
  sut.retune(wanted);
  EXPECT_EQ(sut.rotation.get(), rotation) << "with the memory it has";
  EXPECT_NE(sut.admission.get(), admission);
  EXPECT_EQ(sut.tuning.rotation.alpha, 7);
}

TEST_F(ContextTest, WhatTheStoreOrderedComesBeforeWhatIsSaidOfIt) {
  sut.orders.add(store::AskUnmap{EngineId(1), SlabIndex(3)});
  sut.note(Note::Level::kInfo, EngineId(1), "told");
  sut.orders.add(store::EndStream{Ticket(4)});
  sut.pass_on_orders();
  sut.pass_on_orders();
  ASSERT_EQ(effects.size(), 3u) << "each once";
  EXPECT_EQ(effect<AskUnmap>(0).slab, SlabIndex(3));
  EXPECT_EQ(effect<Note>(1).text, "told");
  EXPECT_EQ(effect<EndStream>(2).ticket, Ticket(4));
}

TEST_F(ContextTest, AnAnswerGoesToWhoeverAsked) {
  Command asked;
  asked.engine = EngineId(5);
  asked.reply_to = ReplyTo(77);
  sut.reply(asked, Done{});
  sut.refuse(asked, ErrorCode::kNotFound, "nobody is there");
  ASSERT_EQ(effects.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(effect<Reply>(i).engine, EngineId(5));
    EXPECT_EQ(effect<Reply>(i).reply_to, ReplyTo(77));
  }
  EXPECT_TRUE(std::holds_alternative<Done>(effect<Reply>(0).body));
  const auto& error = std::get<Error>(effect<Reply>(1).body);
  EXPECT_EQ(error.code, ErrorCode::kNotFound);
  EXPECT_EQ(error.message, "nobody is there");
}

TEST(DistributionTest, AValueFallsUpToAndWithItsBound) {
  constexpr double kBounds[] = {0, 1, 10};
  Distribution sut{kBounds};
  for (const double value : {-1.0, 0.0, 0.5, 1.0, 10.0, 11.0, 1e9}) sut.add(value);
  EXPECT_THAT(sut.counts, ::testing::ElementsAre(2, 2, 1, 2));
  EXPECT_DOUBLE_EQ(sut.sum, -1 + 0 + 0.5 + 1 + 10 + 11 + 1e9);
}

}  // namespace
}  // namespace kvd::core
