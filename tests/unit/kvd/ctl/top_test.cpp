#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvd/admin/documents.hpp"
#include "kvd/ctl/follow.hpp"
#include "kvd/ctl/top/screen.hpp"

namespace kvd::ctl {
namespace {
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;
using testing::SizeIs;
using testing::StartsWith;

/// A kvd with two engines, `seconds` after its start; each made 100 tokens a second times its id.
admin::Snapshot after(std::int64_t seconds, const std::string& boot = "a") {
  admin::Snapshot s;
  s.now = TimePoint(std::chrono::seconds(1000 + seconds));
  s.info.version = "0.1.0";
  s.info.backend = "host";
  s.info.boot_id = boot;
  s.info.uptime = std::chrono::seconds(seconds);
  s.status.tiers[0].capacity = 64 * kMiB;
  s.status.tiers[0].free = 40 * kMiB;
  s.status.cached[0] = 8 * kMiB;
  s.status.counters.tokens = static_cast<std::uint64_t>(300 * seconds);
  s.status.counters.copy_bytes[1] = static_cast<std::uint64_t>(seconds) << 20;
  s.status.counters.tbt = {3, 1};
  for (const std::uint32_t id : {1u, 2u}) {
    core::EngineStatus engine;
    engine.id = EngineId(id);
    engine.name = id == 1 ? "chat" : "wicked\033[2J";
    engine.hbm = Bytes(id == 1 ? 8192 : 4096);
    engine.tokens = static_cast<std::uint64_t>(100 * std::int64_t{id} * seconds);
    s.status.engines.push_back(engine);
    core::RequestStatus request;
    request.key = {EngineId(id), RequestId(7 + id)};
    request.state = core::RequestState::kRotary;
    request.vlt_s = id;
    s.status.requests.push_back(request);
  }
  return s;
}

std::string text_of(const std::vector<std::string>& lines) {
  std::string out;
  for (const std::string& line : lines) out += line + "\n";
  return out;
}

TEST(TopScreen, TellsWhatIsInUseAndWhatIsMadeASecond) {
  top::Screen sut;
  EXPECT_TRUE(sut.head(80).empty());
  ASSERT_TRUE(sut.take(admin::overview_document(after(10))).ok());
  EXPECT_THAT(text_of(sut.head(80)), HasSubstr("- tokens/s"));
  ASSERT_TRUE(sut.take(admin::overview_document(after(12))).ok());
  EXPECT_THAT(text_of(sut.head(80)),
              AllOf(HasSubstr("kvd 0.1.0, host, up 12 s"),
                    HasSubstr("[#####+++            ]  25 %  16 MiB of 64 MiB, 8 MiB cached"),
                    HasSubstr("300 tokens/s"), HasSubstr("copies 1 MiB/s out"),
                    HasSubstr("2 requests: 2 rotary"), HasSubstr("TTFT none yet, TBT 75.0 %")));
  EXPECT_THAT(text_of(sut.rows()), AllOf(HasSubstr("chat"), HasSubstr("100"), HasSubstr("200")));
}

TEST(TopScreen, TellsWhichEngineIsStarved) {
  admin::Snapshot starved = after(10);
  core::ClassService& service = starved.status.engines[0].service.classes.emplace_back();
  service.ttft = {1, 3};
  service.oldest.wait_s = 12;
  starved.status.requests[0].goals = {0, false, 5, 0.1, 1, 7.0};
  starved.status.requests[0].waits_for = WaitReason::kMemory;
  top::Screen sut;
  ASSERT_TRUE(sut.take(admin::overview_document(starved)).ok());
  EXPECT_THAT(sut.rows()[1], AllOf(HasSubstr("25.0 %"), HasSubstr("12 s")));
  sut.choose(top::List::kRequests);
  EXPECT_THAT(text_of(sut.rows()),
              AllOf(HasSubstr("ttft 5 s"), HasSubstr("7 s"), HasSubstr("HBM has no room for it")));
}

TEST(TopScreen, FitsItsBarsIntoTheTerminal) {
  top::Screen sut;
  ASSERT_TRUE(sut.take(admin::overview_document(after(10))).ok());
  for (const std::size_t width : {60u, 80u, 100u}) {
    EXPECT_LE(sut.head(width)[1].size(), width);
    EXPECT_THAT(sut.head(width)[1], MatchesRegex("hbm   \\[#+\\++ +\\] .*"));
  }
}

TEST(TopScreen, OrdersItsLists) {
  top::Screen sut;
  ASSERT_TRUE(sut.take(admin::overview_document(after(10))).ok());
  ASSERT_TRUE(sut.take(admin::overview_document(after(11))).ok());
  ASSERT_THAT(sut.rows(), SizeIs(3));
  EXPECT_THAT(sut.rows()[1], StartsWith(" 1  chat"));
  sut.choose(top::Order::kRate);
  EXPECT_THAT(sut.rows()[1], StartsWith(" 2  wicked"));
  sut.choose(top::Order::kMemory);
  EXPECT_THAT(sut.rows()[1], StartsWith(" 1  chat"));
  sut.choose(top::List::kRequests);
  sut.choose(top::Order::kLag);
  EXPECT_THAT(sut.rows(), ElementsAre(HasSubstr("LAG"), HasSubstr(" 2 s"), HasSubstr(" 1 s")));
}

TEST(TopScreen, LetsNoNameSteerTheTerminal) {
  top::Screen sut;
  ASSERT_TRUE(sut.take(admin::overview_document(after(10))).ok());
  EXPECT_THAT(text_of(sut.rows()), Not(HasSubstr("\033")));
}

TEST(TopScreen, BeginsAnewWithAnotherKvd) {
  top::Screen sut;
  ASSERT_TRUE(sut.take(admin::overview_document(after(100))).ok());
  ASSERT_TRUE(sut.take(admin::overview_document(after(1, "b"))).ok());
  EXPECT_THAT(text_of(sut.head(80)), AllOf(HasSubstr("- tokens/s"), HasSubstr("up 1 s")));
}

TEST(TopScreen, KeepsWhatItShowsWhenAnAnswerIsStrange) {
  top::Screen sut;
  ASSERT_TRUE(sut.take(admin::overview_document(after(10))).ok());
  const auto before = text_of(sut.head(80));
  for (const char* strange : {"", "{", "{}", R"({"now_s": 1, "status": {"boot_id": "a"}})"}) {
    EXPECT_EQ(sut.take(strange).error().code, ErrorCode::kInternal) << strange;
    EXPECT_EQ(text_of(sut.head(80)), before);
  }
}

std::string events(std::uint64_t first, std::uint64_t last) {
  std::vector<admin::Happening> all;
  for (; first <= last; ++first) {
    all.push_back(
        {first, TimePoint{}, "info", EngineId(2), "went \033[1m" + std::to_string(first)});
  }
  return admin::events_document(all, TimePoint(std::chrono::seconds(3)));
}

TEST(EventFollower, PrintsEachEventOnce) {
  EventFollower sut(false);
  EXPECT_EQ(*sut.take(events(1, 0)), "");
  EXPECT_EQ(*sut.take(events(1, 2)),
            "1  3 s ago  info  engine 2: went ?[1m1\n2  3 s ago  info  engine 2: went ?[1m2\n");
  EXPECT_EQ(*sut.take(events(1, 2)), "");
  EXPECT_THAT(*sut.take(events(1, 3)), StartsWith("3  3 s ago"));
}

TEST(EventFollower, SaysWhatItMissed) {
  EventFollower sut(false);
  ASSERT_TRUE(sut.take(events(5, 6)).ok());
  EXPECT_THAT(*sut.take(events(9, 9)), StartsWith("(2 events before were lost)\n9  "));
}

TEST(EventFollower, BeginsAnewWithAnotherKvd) {
  EventFollower sut(false);
  ASSERT_TRUE(sut.take(events(1, 8)).ok());
  EXPECT_THAT(*sut.take(events(1, 1)), StartsWith("1  "));
}

TEST(EventFollower, PrintsTheChosenAlone) {
  EventFollower sut(false, {.engine = 3});
  ASSERT_TRUE(sut.take(events(1, 2)).ok());
  EXPECT_EQ(*sut.take(events(3, 4)), "") << "they are engine 2's";
  EXPECT_THAT(*sut.take(events(9, 9)), StartsWith("(4 events before were lost)"));
}

TEST(EventFollower, PrintsAnObjectALineAsJson) {
  EventFollower sut(true);
  EXPECT_THAT(*sut.take(events(4, 4)),
              MatchesRegex("\\{\"sequence\":4,.*\"level\":\"info\".*\\}\n"));
  EXPECT_EQ(sut.take("[]").error().code, ErrorCode::kInternal);
}

}  // namespace
}  // namespace kvd::ctl
