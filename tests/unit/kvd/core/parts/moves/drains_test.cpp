// Engines and nodes out of service: what is refused, what ends and when, and what is told.
#include "kvd/core/moves/drains.hpp"

#include <gmock/gmock.h>

#include "tests/unit/kvd/core/parts/all_parts_fixture.hpp"

namespace kvd::core {
namespace {

using std::chrono::seconds;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class DrainsTest : public AllPartsTest {
 protected:
  template <class Body>
  ErrorCode code(const Session& session, Body body) {
    const Command asked = command(session, std::move(body));
    commands.on_command(asked);
    return code_of(answer_to(asked));
  }
  ErrorCode submitted(const Session& session, std::uint64_t id) {
    return code(session, Submit{RequestId(id), Tokens(4), Tokens(4)});
  }
  void drain(EngineId engine, std::optional<Nanoseconds> patience = std::nullopt) {
    sut.on_drain({engine, false, patience});
  }
  /// Ended by its engine's next step, with this reason.
  static bool ends(const Session& session, RequestId request, Hold reason) {
    return std::any_of(session.given_up.begin(), session.given_up.end(), [&](const HoldEntry& e) {
      return e.request == request && e.reason == reason;
    });
  }
  std::vector<std::string> notes() {
    std::vector<std::string> texts;
    for (const Note& note : emitted<Note>()) texts.push_back(note.text);
    return texts;
  }

  Drains& sut = ground.drains;
};

TEST_F(DrainsTest, TheEngineAloneGetsNothingNew) {
  Session& out = attach();
  Session& other = attach();
  drain(out.id);
  EXPECT_EQ(submitted(out, 50), ErrorCode::kDraining);
  EXPECT_EQ(code(out, AllocateRegion{kSlab}), ErrorCode::kDraining);
  EXPECT_EQ(submitted(other, 50), ErrorCode::kOk);
  EXPECT_TRUE(sut.takes_engines().ok());
}

TEST_F(DrainsTest, TheNodeTakesNoEnginesAndGivesNobodyAnythingNew) {
  Session& session = attach();
  drain(EngineId());
  EXPECT_EQ(submitted(session, 50), ErrorCode::kDraining);
  EXPECT_EQ(sessions.attach({}).error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(sut.status()->left, 0u);
  running(session, 4);
  EXPECT_EQ(sut.status()->left, 1u);
}

TEST_F(DrainsTest, ACancelPutsBackWhomItNamesAndNobodyElse) {
  Session& session = attach();
  drain(session.id);
  drain(EngineId());
  sut.on_drain({EngineId(), true});
  EXPECT_EQ(submitted(session, 50), ErrorCode::kDraining);
  sut.on_drain({session.id, true});
  EXPECT_EQ(submitted(session, 50), ErrorCode::kOk);
  EXPECT_FALSE(sut.status(session).has_value());
  EXPECT_THAT(notes(), Contains(HasSubstr("back in service")));
}

TEST_F(DrainsTest, WhoWaitsEndsAtTheNextStepAndWhoRunsGoesOn) {
  Session& session = attach();
  const RequestId runs = running(session, 4).key.request;
  const RequestId waits = submit(session, 4, 4).key.request;
  sut.end_left(session);
  EXPECT_THAT(session.given_up, IsEmpty()) << "in service nobody ends";
  drain(session.id);
  pass(seconds(1000));
  sut.end_left(session);
  EXPECT_TRUE(ends(session, waits, Hold::kDrained));
  EXPECT_THAT(session.given_up, SizeIs(1));
  EXPECT_NE(ground.requests.find(session.id, runs), nullptr);
  EXPECT_EQ(ground.context.counters.ended.drained, 1u);
}

TEST_F(DrainsTest, AtTheDeadlineAllEndOnceNoIterationHasThem) {
  Session& session = attach();
  Request& computes = running(session, 4);
  const RequestId busy = computes.key.request;
  const RequestId in_dram = parked(swaps, session, 4).key.request;
  computes.progress.last_iteration = session.iterations.granted = 3;
  session.iterations.finished = 2;
  drain(session.id, seconds(10));
  pass(seconds(10) - Nanoseconds(1));
  sut.end_left(session);
  EXPECT_THAT(session.given_up, IsEmpty());
  pass(Nanoseconds(1));
  sut.end_left(session);
  EXPECT_TRUE(ends(session, in_dram, Hold::kDrained));
  EXPECT_FALSE(ends(session, busy, Hold::kDrained));
  const StepReply reply = replies.build(session);
  EXPECT_THAT(reply.run, IsEmpty()) << "it gets no more";
  session.iterations.finished = 3;
  sut.end_left(session);
  EXPECT_TRUE(ends(session, busy, Hold::kDrained));
  EXPECT_EQ(sut.status(session)->left, 0u);
}

TEST_F(DrainsTest, TheSoonerDeadlineHolds) {
  Session& session = attach();
  drain(session.id, seconds(10));
  drain(EngineId(), seconds(5));
  EXPECT_EQ(sut.status(session)->deadline, ground.context.now + seconds(5));
  drain(session.id);
  drain(EngineId());
  EXPECT_FALSE(sut.status(session)->deadline.has_value()) << "told anew, the new one holds";
}

TEST_F(DrainsTest, AnEngineWithNothingLeftIsToldOnce) {
  Session& session = attach();
  Request& last = running(session, 4);
  drain(session.id);
  sut.watch();
  EXPECT_THAT(notes(), testing::Not(Contains(HasSubstr("nothing left"))));
  ground.memory.end(last);
  sut.watch();
  sut.watch();
  std::size_t told = 0;
  for (const std::string& note : notes()) told += note.find("nothing left") != std::string::npos;
  EXPECT_EQ(told, 1u);
}

TEST_F(DrainsTest, OfAnEngineThatPlacesWhoHasNotBegunStaysOut) {
  Session& session = attach();
  session.class_id = ClassId();
  const auto entry = [](std::uint64_t id, Schedule::State state) {
    Schedule::Request request;
    request.request = RequestId(id);
    request.state = state;
    request.prompt = Tokens(16);
    request.max_new = Tokens(16);
    if (state != Schedule::State::kWaiting)
      request.computed = Tokens(16), request.generated = Tokens(1);
    return request;
  };
  const auto admitted = [&] {
    Schedule told;
    told.free_blocks = told.total_blocks = 64;
    told.requests = {entry(1, Schedule::State::kWaiting), entry(2, Schedule::State::kParked)};
    const Command asked = command(session, told);
    commands.on_command(asked);
    const auto answer = answer_to(asked);
    return std::get<ScheduleReply>(answer->body).admit;
  };
  EXPECT_THAT(admitted(), SizeIs(2));
  drain(session.id);
  EXPECT_THAT(admitted(), testing::ElementsAre(RequestId(2)));
  EXPECT_EQ(sut.status(session)->left, 1u);
}

}  // namespace
}  // namespace kvd::core
