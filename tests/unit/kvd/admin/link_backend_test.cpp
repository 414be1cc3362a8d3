// What kvd-admin keeps of what kvd tells it.
#include "kvd/admin/link_backend.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace kvd::admin {
namespace {
using testing::ElementsAre;

constexpr Nanoseconds kSoon = std::chrono::seconds(30);

struct LinkHistory : testing::Test {
  LinkHistory() {
    auto pair = link::Channel::pair();
    KVD_CHECK(pair.ok(), "a socket pair");
    kvd.emplace(std::move(pair->first));
    own.emplace(std::move(pair->second));
    sut.emplace(*own, clock, [] {});
    sut->open();
  }

  /// kvd answers once, at this second of its own clock, by which it had made this many tokens.
  std::thread answer_in(int second) {
    return std::thread([this, second] {
      EXPECT_TRUE(kvd->receive(kKiB, kSoon).ok());
      Snapshot snapshot;
      snapshot.now = TimePoint(std::chrono::seconds(second));
      snapshot.status.counters.tokens = static_cast<std::uint64_t>(second);
      link::ByteVector reply;
      link::append(reply, link::Verdict{});
      link::encode(snapshot, reply);
      EXPECT_TRUE(kvd->send(link::Type::kSnapshot, reply, kSoon).ok());
    });
  }
  /// The seconds that the history contains after a look at this one.
  std::vector<std::uint64_t> after_look_at(int second) {
    std::thread answers = answer_in(second);
    const auto seen = sut->snapshot();
    answers.join();
    clock.advance(LinkBackend::kFresh);
    std::vector<std::uint64_t> seconds;
    if (!seen.ok()) return seconds;
    for (const Moment& one : *(*seen)->history) seconds.push_back(one.counters.tokens);
    return seconds;
  }

  std::optional<link::Channel> kvd, own;
  ManualClock clock;
  std::optional<LinkBackend> sut;
};

TEST_F(LinkHistory, HasAMomentEachFiveSecondsForFifteenMinutes) {
  EXPECT_THAT(after_look_at(10), ElementsAre(10));
  EXPECT_THAT(after_look_at(14), ElementsAre(10));
  EXPECT_THAT(after_look_at(15), ElementsAre(10, 15));
  EXPECT_THAT(after_look_at(600), ElementsAre(10, 15, 600));
  EXPECT_THAT(after_look_at(910), ElementsAre(15, 600, 910));
}

// Or a reader would miss what it has just done.
TEST_F(LinkHistory, IsKeptWithoutShowingAnybodyWhatWasSeenForIt) {
  std::thread answers = answer_in(10);
  sut->keep_history();
  answers.join();
  EXPECT_THAT(after_look_at(15), ElementsAre(10, 15));
}

}  // namespace
}  // namespace kvd::admin
