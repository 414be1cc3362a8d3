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

  /// The seconds of which the history tells after a look at this one. Then kvd made so many tokens.
  std::vector<std::uint64_t> after_look_at(int second) {
    std::thread answers([&] {
      EXPECT_TRUE(kvd->receive(kKiB, kSoon).ok());
      Snapshot snapshot;
      snapshot.now = TimePoint(std::chrono::seconds(second));
      snapshot.status.counters.tokens = static_cast<std::uint64_t>(second);
      link::ByteVector reply;
      link::append(reply, link::Verdict{});
      link::encode(snapshot, reply);
      EXPECT_TRUE(kvd->send(link::Type::kSnapshot, reply, kSoon).ok());
    });
    clock.advance(LinkBackend::kFresh);
    const auto seen = sut->snapshot();
    answers.join();
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

}  // namespace
}  // namespace kvd::admin
