// The commands of engines, one by one.
#include "kvd/core/talk/commands.hpp"

#include <gmock/gmock.h>

#include "tests/unit/kvd/core/parts/all_parts_fixture.hpp"

namespace kvd::core {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class CommandsTest : public AllPartsTest {
 protected:
  template <class Body>
  std::optional<Reply> ask(const Session& session, Body body) {
    const Command asked = command(session, std::move(body));
    commands.on_command(asked);
    return answer_to(asked);
  }
  template <class Body>
  ErrorCode code(const Session& session, Body body) {
    return code_of(ask(session, std::move(body)));
  }
  static Submit wanted(std::uint64_t id, std::int64_t prompt, std::int64_t max_new) {
    Submit body;
    body.request = RequestId(id);
    body.prompt_tokens = Tokens(prompt);
    body.max_new_tokens = Tokens(max_new);
    return body;
  }
};

TEST_F(CommandsTest, AreRefusedOnceTheSessionHasEnded) {
  Session& session = attach();
  session.life.dying = true;
  EXPECT_EQ(code(session, Ping{}), ErrorCode::kStaleSession);
  session.life.dying = false;
  EXPECT_EQ(code(session, Ping{}), ErrorCode::kOk);
}

TEST_F(CommandsTest, DoNotBeginAfterTheirDeadline) {
  const Command late = command(attach(), Ping{});
  pass(seconds(1));
  commands.on_command(late);
  EXPECT_EQ(code_of(answer_to(late)), ErrorCode::kOk) << "a timeout of zero asks, too";
  const Command later = command(ground.requests.sessions().begin()->second, Ping{});
  pass(seconds(2));
  commands.on_command(later);
  EXPECT_EQ(code_of(answer_to(later)), ErrorCode::kDeadlineExceeded);
}

TEST_F(CommandsTest, ASubmitTakesTheGoalsOfItsClassUnlessItNamesItsOwn) {
  Session& session = attach();
  session.info.slo_class = "chat";
  ground.context.tuning.slo["chat"] = {seconds(3), seconds(1)};
  ASSERT_EQ(code(session, wanted(50, 4, 4)), ErrorCode::kOk);
  EXPECT_EQ(ground.requests.find(session.id, RequestId(50))->goal.slo.ttft, seconds(3));
  Submit own = wanted(51, 4, 4);
  own.ttft_slo = seconds(9);
  ASSERT_EQ(code(session, own), ErrorCode::kOk);
  const Slo slo = ground.requests.find(session.id, RequestId(51))->goal.slo;
  EXPECT_EQ(slo.ttft, seconds(9));
  EXPECT_EQ(slo.tbt, seconds(1));
}

TEST_F(CommandsTest, ARequestHasTheGapOfItsClassUnlessItNamesItsOwn) {
  Session& session = attach();
  session.info.slo_class = "chat";
  ground.context.tuning.slo["chat"] = {seconds(3), seconds(1), seconds(1), seconds(7)};
  ASSERT_EQ(code(session, wanted(50, 4, 4)), ErrorCode::kOk);
  const auto gap = [&] {
    return ground.requests.find(session.id, RequestId(50))->goal.slo.longest_gap();
  };
  EXPECT_EQ(gap(), seconds(7));
  SetGaps named{{{RequestId(50), seconds(2)}, {RequestId(51), seconds(2)}}};
  EXPECT_EQ(code(session, named), ErrorCode::kOk) << "who is not there is passed over";
  EXPECT_EQ(gap(), seconds(2));
  session.placed.emplace().all.resize(1);
  session.placed->all[0].key.request = RequestId(51);
  EXPECT_EQ(code(session, named), ErrorCode::kOk);
  EXPECT_EQ(session.placed->all[0].own_gap, seconds(2)) << "where its engine places, too";
  named.gaps[0].gap = Nanoseconds(0);
  EXPECT_EQ(code(session, named), ErrorCode::kOk);
  EXPECT_EQ(gap(), seconds(7));
}

TEST_F(CommandsTest, ASubmitThatCannotBeIsRefused) {
  Session& session = attach();
  EXPECT_EQ(code(session, wanted(0, 4, 4)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(session, wanted(1, 0, 4)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(session, wanted(1, 4, 0)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(session, wanted(1, std::int64_t{1} << 41, 4)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(session, wanted(1, 4, std::int64_t{1} << 41)), ErrorCode::kInvalidArgument);
  Submit negative = wanted(1, 4, 4);
  negative.tbt_slo = seconds(-1);
  EXPECT_EQ(code(session, negative), ErrorCode::kInvalidArgument);
  session.class_id = ClassId();
  EXPECT_EQ(code(session, wanted(1, 4, 4)), ErrorCode::kInvalidArgument);
  session.class_id = kClass;
  EXPECT_THAT(ground.requests.all(), IsEmpty());
}

TEST_F(CommandsTest, ARequestIsSubmittedOnce) {
  Session& session = attach();
  EXPECT_EQ(code(session, wanted(1, 4, 4)), ErrorCode::kOk);
  EXPECT_EQ(code(session, wanted(1, 4, 4)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(ground.context.counters.requests_submitted, 1u);
}

TEST_F(CommandsTest, OpenRequestsHaveABoundForSessionAndDomain) {
  Session& session = attach();
  ground.context.config.max_requests_per_engine = 1;
  EXPECT_EQ(code(session, wanted(1, 4, 4)), ErrorCode::kOk);
  EXPECT_EQ(code(session, wanted(2, 4, 4)), ErrorCode::kQuotaExceeded);
  ground.context.config.max_requests_per_domain = 1;
  EXPECT_EQ(code(attach(), wanted(2, 4, 4)), ErrorCode::kQuotaExceeded);
  EXPECT_EQ(code(attach(kB), wanted(2, 4, 4)), ErrorCode::kOk);
}

TEST_F(CommandsTest, WhatCanNeverFitIsRefusedAtOnce) {
  Session& session = attach();
  session.info.streams_layers = false;
  EXPECT_EQ(code(session, wanted(1, 60, 4)), ErrorCode::kOk) << "64 tokens fill the pool";
  EXPECT_EQ(code(session, wanted(2, 60, 5)), ErrorCode::kOutOfMemory);
}

TEST_F(CommandsTest, AnEndFreesTheBlocks) {
  Session& session = attach();
  const RequestId one = running(session, 8).key.request, two = running(session, 8).key.request;
  EXPECT_EQ(code(session, Finish{one}), ErrorCode::kOk);
  EXPECT_EQ(code(session, Abort{two}), ErrorCode::kOk);
  EXPECT_EQ(code(session, Abort{two}), ErrorCode::kNotFound);
  EXPECT_EQ(free_hbm(), kSlab * 4);
  EXPECT_EQ(ground.context.counters.requests_finished, 1u);
  EXPECT_EQ(ground.context.counters.requests_aborted, 1u);
}

TEST_F(CommandsTest, NobodyEndsAnothersRequest) {
  const RequestId request = running(attach(), 8).key.request;
  EXPECT_EQ(code(attach(), Abort{request}), ErrorCode::kNotFound);
  EXPECT_THAT(ground.requests.all(), SizeIs(1));
}

TEST_F(CommandsTest, BlocksAreGivenAsFarAsTheRequestMayGrow) {
  Session& session = attach();
  Request& request = running(session, 4, 9);
  request.goal.prompt = Tokens(4);
  const auto blocks = [&](std::int64_t tokens) {
    return AllocateBlocks{request.key.request, Tokens(tokens)};
  };
  EXPECT_EQ(code(session, blocks(0)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(session, blocks(10)), ErrorCode::kInvalidArgument);
  const auto reply = ask(session, blocks(9));
  ASSERT_EQ(code_of(reply), ErrorCode::kOk);
  EXPECT_EQ(std::get<BlocksReply>(reply->body).blocks, 3u);
  EXPECT_EQ(code(session, AllocateBlocks{RequestId(99), Tokens(1)}), ErrorCode::kNotFound);
}

TEST_F(CommandsTest, BlocksThatAreNotThereAreRefusedWithTheWayOut) {
  Session& session = attach();
  running(session, 60);
  Request& request = running(session, 4, 60);
  const auto reply = ask(session, AllocateBlocks{request.key.request, Tokens(60)});
  ASSERT_EQ(code_of(reply), ErrorCode::kOutOfMemory);
  EXPECT_THAT(std::get<Error>(reply->body).message, HasSubstr("step"));
}

TEST_F(CommandsTest, RotatesOutAndKeepsItOut) {
  Session& session = attach();
  Request& request = running(session, 8);
  ASSERT_EQ(code(session, Rotate{request.key.request, true}), ErrorCode::kOk);
  EXPECT_TRUE(request.forced_out());
  EXPECT_EQ(request.place, Location::kGoing);
  EXPECT_EQ(ground.context.counters.rotations_forced, 1u);
  EXPECT_EQ(code(session, Rotate{request.key.request, true}), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(swaps.on_copy({request.moves.rotation, true, kSlot, Nanoseconds(1000)}));
}

TEST_F(CommandsTest, RotatesInByAClaim) {
  Session& session = attach();
  Request& request = parked(swaps, session, 8);
  request.verdict = Verdict::kForcedOut;
  ASSERT_EQ(code(session, Rotate{request.key.request, false}), ErrorCode::kOk);
  EXPECT_FALSE(request.forced_out());
  EXPECT_EQ(request.place, Location::kComing) << "there is room";
  EXPECT_TRUE(swaps.on_copy({request.moves.rotation, true, kSlot, Nanoseconds(1000)}));
}

// Else it would run on once a command brought it back, though its end was announced.
TEST_F(CommandsTest, OneThatEndsStaysHopelessWhereverItIs) {
  Session& session = attach();
  Request& request = running(session, 8);
  request.verdict = Verdict::kHopeless;
  ASSERT_EQ(code(session, Rotate{request.key.request, true}), ErrorCode::kOk);
  EXPECT_EQ(request.verdict, Verdict::kHopeless);
  EXPECT_TRUE(swaps.on_copy({request.moves.rotation, true, kSlot, Nanoseconds(1000)}));
  ASSERT_EQ(code(session, Rotate{request.key.request, false}), ErrorCode::kOk);
  EXPECT_EQ(request.verdict, Verdict::kHopeless);
  request.verdict = Verdict::kNone;
  if (request.moves.rotation) {
    EXPECT_TRUE(swaps.on_copy({request.moves.rotation, true, kSlot, Nanoseconds(1000)}));
  }
}

TEST_F(CommandsTest, StatsCountWhatTheSessionHas) {
  Session& session = attach();
  running(session, 8);
  parked(swaps, session, 4);
  submit(session, 4, 4);
  running(attach(), 8);
  const auto reply = ask(session, Stats{});
  ASSERT_EQ(code_of(reply), ErrorCode::kOk);
  const auto& stats = std::get<StatsReply>(reply->body);
  EXPECT_EQ(stats.hbm, kSlot * 4);
  EXPECT_EQ(stats.dram, kSlot * 2);
  EXPECT_EQ(stats.running, 1u);
  EXPECT_EQ(stats.rotary, 1u);
  EXPECT_EQ(stats.waiting, 1u);
}

TEST_F(CommandsTest, OrphanedBytesGoDownToNothing) {
  Session& session = attach();
  session.info.orphaned = Bytes(100);
  EXPECT_EQ(code(session, ReleaseOrphaned{Bytes(60)}), ErrorCode::kOk);
  EXPECT_EQ(session.info.orphaned, Bytes(40));
  EXPECT_EQ(code(session, ReleaseOrphaned{Bytes(60)}), ErrorCode::kOk);
  EXPECT_EQ(session.info.orphaned, Bytes(0));
}

TEST_F(CommandsTest, AStepIsAnsweredWithWhatToRun) {
  Session& session = attach();
  running(session, 6);
  const auto reply = ask(session, Step{});
  ASSERT_EQ(code_of(reply), ErrorCode::kOk);
  EXPECT_THAT(std::get<StepReply>(reply->body).run, SizeIs(1));
  Step impossible;
  impossible.iteration_finished = 9;
  EXPECT_EQ(code(session, impossible), ErrorCode::kInvalidArgument);
  ground.store.tiers.iteration_finished(session.id, 1);
}

TEST_F(CommandsTest, WhatBlocksHoldIsToldInOrderAndWithinBounds) {
  Session& session = attach();
  Request& request = submit(session, 40, 8);
  const auto tell = [&](std::uint32_t first, std::size_t count, RequestId of) {
    NameBlocks names;
    for (std::size_t i = 0; i < count; ++i) {
      names.blocks.push_back({of, first + static_cast<std::uint32_t>(i), Digest{}});
    }
    const Command asked = command(session, names);
    commands.on_command(asked);
    return code_of(answer_to(asked));
  };
  EXPECT_EQ(tell(0, 3, request.key.request), ErrorCode::kOk);
  EXPECT_EQ(request.content.chain.size(), 3u);
  EXPECT_EQ(tell(0, 1, request.key.request), ErrorCode::kInvalidArgument) << "twice";
  EXPECT_EQ(tell(3, 10, request.key.request), ErrorCode::kInvalidArgument) << "beyond its end";
  EXPECT_EQ(tell(0, 1, RequestId(77)), ErrorCode::kOk) << "one that has ended meanwhile";
}

// The bound holds over all sessions: if each session had one of its own, a user could add them up.
TEST_F(CommandsTest, NamesOfRequestsThatOnlyWaitAreAddedUpByDomain) {
  std::vector<Digest> much(std::size_t{1} << 18);
  const auto name_one = [&](Session& session, Request& request) {
    NameBlocks names;
    const auto next = static_cast<std::uint32_t>(request.content.chain.size());
    names.blocks.push_back({request.key.request, next, Digest{}});
    return code(session, names);
  };
  std::size_t named = 0;
  while (true) {
    Session& session = attach(kA);
    Request& request = submit(session, std::int64_t{1} << 30, 8);
    if (name_one(session, request) == ErrorCode::kQuotaExceeded) break;
    ASSERT_LT(++named, 64u) << "nobody adds them up";
    ground.requests.tell(request, much);
  }
  EXPECT_GT(named, 4u) << "a long prompt can be named";
  Session& other = attach(kB);
  EXPECT_EQ(name_one(other, submit(other, 40, 8)), ErrorCode::kOk) << "others are free to";
  EXPECT_EQ(code(attach(kA), OpenSpace{1}), ErrorCode::kQuotaExceeded) << "it is one account";
  while (!ground.requests.all().empty()) {
    Request& first = ground.requests.at(ground.requests.all().begin()->first);
    ground.memory.end(first);
  }
  EXPECT_EQ(code(attach(kA), OpenSpace{1}), ErrorCode::kOk) << "with them the bytes go";
}

}  // namespace
}  // namespace kvd::core
