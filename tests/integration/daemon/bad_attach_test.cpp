// Messages that the attach socket must not believe. Each refusal has its documented code, and the
// daemon serves on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/support/daemon_thread.hpp"
#include "tests/support/raw_engine.hpp"

namespace kvd::test {
namespace {

using testing::HasSubstr;

template <class T>
std::vector<std::byte> bytes_of(T message) {
  const auto frame = wire::seal(message);
  return {frame.begin(), frame.end()};
}

class BadAttach : public testing::Test {
 protected:
  ~BadAttach() override {
    // Polled, as sessions that were just closed may still count.
    EXPECT_TRUE(poll_until([&] { return RawEngine::attach(daemon_.endpoint(), "after").ok(); }))
        << "kvd serves no more";
    EXPECT_TRUE(daemon_.wait_all_free());
  }
  AttachAnswer answer_to(std::span<const std::byte> frame) {
    return say(daemon_.endpoint(), frame);
  }

  DaemonThread daemon_{[](daemon::Config& config) {
    config.max_engines = 2;
    config.domains[0].per_user = false;  // who is alone has all
  }};
};

TEST_F(BadAttach, AVersionNobodySpeaksNamesBothRanges) {
  wire::Hello hello;
  hello.version_min = 7;
  hello.version_max = 9;
  const AttachAnswer answer = answer_to(bytes_of(hello));
  EXPECT_EQ(answer.code, ErrorCode::kUnsupported);
  EXPECT_THAT(answer.message, HasSubstr("7"));
  EXPECT_THAT(answer.message, HasSubstr("9"));
  EXPECT_THAT(answer.message, HasSubstr(std::to_string(wire::kVersionMax)));
}

TEST_F(BadAttach, ATruncatedHelloIsInvalid) {
  const auto frame = bytes_of(wire::Hello());
  for (const std::size_t size : {1ul, 15ul, 16ul, 50ul, 103ul}) {
    EXPECT_EQ(answer_to(std::span(frame).first(size)).code, ErrorCode::kInvalidArgument) << size;
  }
}

TEST_F(BadAttach, AnOversizedFrameIsInvalid) {
  std::vector<std::byte> frame = bytes_of(wire::Hello());
  frame.resize(wire::kMaxAttachFrame + 1);
  EXPECT_EQ(answer_to(frame).code, ErrorCode::kInvalidArgument);
}

TEST_F(BadAttach, AnUnknownTypeIsUnsupported) {
  auto frame = bytes_of(wire::Hello());
  frame[6] = std::byte{99};
  EXPECT_EQ(answer_to(frame).code, ErrorCode::kUnsupported);
}

TEST_F(BadAttach, AnotherMagicIsInvalid) {
  auto frame = bytes_of(wire::Hello());
  frame[0] = std::byte{'X'};
  EXPECT_EQ(answer_to(frame).code, ErrorCode::kInvalidArgument);
}

TEST_F(BadAttach, AFrameThatIsNoHelloIsInvalid) {
  EXPECT_EQ(answer_to(bytes_of(wire::Goodbye())).code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(answer_to(bytes_of(wire::SlabMapped())).code, ErrorCode::kInvalidArgument);
}

TEST_F(BadAttach, AnUnknownTransportIsUnsupported) {
  wire::Hello hello;
  hello.transport = 2;
  EXPECT_EQ(answer_to(bytes_of(hello)).code, ErrorCode::kUnsupported);
}

TEST_F(BadAttach, AShapeOutOfRangeIsInvalidAndABlockBeyondASlabNamesTheRemedy) {
  wire::Hello hello;
  hello.shape.layers = 4;  // no bytes a token
  EXPECT_EQ(answer_to(bytes_of(hello)).code, ErrorCode::kInvalidArgument);
  hello.shape = {4, 1, 1, 0, 4095};
  EXPECT_THAT(answer_to(bytes_of(hello)).message, HasSubstr("raise layers_per_block"));
  hello.shape = {64, 64, 1024, 0, 1024};
  const AttachAnswer answer = answer_to(bytes_of(hello));
  EXPECT_EQ(answer.code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(answer.message, HasSubstr("pool.slab"));
}

TEST_F(BadAttach, MoreEnginesThanAllowedExceedTheQuota) {
  const auto first = RawEngine::attach(daemon_.endpoint(), "first");
  {
    const auto second = RawEngine::attach(daemon_.endpoint(), "second");
    ASSERT_TRUE(first.ok() && second.ok());
    const auto third = RawEngine::attach(daemon_.endpoint(), "third");
    ASSERT_FALSE(third.ok());
    EXPECT_EQ(third.error().code, ErrorCode::kQuotaExceeded);
    EXPECT_THAT(third.error().message, HasSubstr("engine.max_engines"));
  }
  // The one that closed makes room for another.
  EXPECT_TRUE(poll_until([&] { return RawEngine::attach(daemon_.endpoint(), "next").ok(); }));
}

// A user who comes second must find seats, however many the first has taken.
TEST(BadAttachOfADomain, AUserHasHalfOfTheSeatsBeforeASecondUserIsThere) {
  DaemonThread daemon([](daemon::Config& config) {
    config.max_engines = 4;
    config.domains[0].per_user = true;
  });
  const auto first = RawEngine::attach(daemon.endpoint(), "first");
  const auto second = RawEngine::attach(daemon.endpoint(), "second");
  ASSERT_TRUE(first.ok() && second.ok());
  const auto third = RawEngine::attach(daemon.endpoint(), "third");
  ASSERT_FALSE(third.ok());
  EXPECT_THAT(third.error().message, HasSubstr("share of engine.max_engines"));
}

TEST(BadAttachOfADomain, MoreThanItsShareLeavesTheOthersTheirs) {
  DaemonThread daemon([](daemon::Config& config) {
    config.max_engines = 4;
    config.domains.assign(2, {});
    config.domains[0].uids = {::getuid()};
    config.domains[1].name = "theirs";
    config.domains[1].uids = {::getuid() + 1};
  });
  const auto first = RawEngine::attach(daemon.endpoint(), "first");
  const auto second = RawEngine::attach(daemon.endpoint(), "second");
  ASSERT_TRUE(first.ok() && second.ok());
  const auto third = RawEngine::attach(daemon.endpoint(), "third");
  ASSERT_FALSE(third.ok());
  EXPECT_EQ(third.error().code, ErrorCode::kQuotaExceeded);
  EXPECT_THAT(third.error().message, HasSubstr("share of engine.max_engines"));
}

TEST_F(BadAttach, AConnectionThatNeverSpeaksIsClosed) {
  auto silent = transport::connect_attach(daemon_.endpoint(), kPatience);
  ASSERT_TRUE(silent.ok());
  ASSERT_TRUE(RawEngine::attach(daemon_.endpoint(), "meanwhile").ok());
  daemon_.clock().advance(std::chrono::seconds(6));
  EXPECT_EQ(silent->receive(kPatience).error().code, ErrorCode::kPeerGone);
}

/// As many connections of one user as may be silent at a time.
std::vector<transport::AttachConnection> silent_crowd(const std::string& endpoint) {
  constexpr std::size_t kBound = 64;  // session_bounds.hpp, few engines allowed
  std::vector<transport::AttachConnection> crowd;
  crowd.reserve(kBound);
  while (crowd.size() < kBound) {
    crowd.push_back(transport::connect_attach(endpoint, kPatience).value());
  }
  return crowd;
}

TEST_F(BadAttach, WhoWasTakenInKeepsItsPlaceBesideThoseThatComeLater) {
  auto silent = silent_crowd(daemon_.endpoint());
  for (int i = 0; i < 10; ++i) {
    auto late = transport::connect_attach(daemon_.endpoint(), kPatience);
    ASSERT_TRUE(late.ok());
    EXPECT_EQ(late->receive(kPatience).error().code, ErrorCode::kPeerGone) << "to try again";
  }
  ASSERT_TRUE(silent.front().send(bytes_of(wire::Hello())).ok());
  EXPECT_TRUE(silent.front().receive(kPatience).ok());
  EXPECT_TRUE(RawEngine::attach(daemon_.endpoint(), "speaks").ok()) << "there is a place again";
}

TEST_F(BadAttach, ConnectionsThatNeverSpeakKeepTheirUserOutOnlyUntilTheirTimeIsOver) {
  const auto silent = silent_crowd(daemon_.endpoint());
  EXPECT_FALSE(RawEngine::attach(daemon_.endpoint(), "early").ok());
  daemon_.clock().advance(std::chrono::seconds(6));
  EXPECT_TRUE(poll_until([&] { return RawEngine::attach(daemon_.endpoint(), "in time").ok(); }));
}

TEST(Attach, AllThatConnectBeforeAnyOfThemSpeaksAreHeard) {
  constexpr std::size_t kEngines = 64;
  DaemonThread daemon([](daemon::Config& config) {
    config.max_engines = kEngines;
    config.domains[0].per_user = false;  // who is alone has all
  });
  std::vector<transport::AttachConnection> engines;
  engines.reserve(kEngines);
  while (engines.size() < kEngines) {
    engines.push_back(transport::connect_attach(daemon.endpoint(), kPatience).value());
  }
  for (auto& engine : engines) ASSERT_TRUE(engine.send(bytes_of(wire::Hello())).ok());
  for (auto& engine : engines) {
    const auto frame = engine.receive(kPatience);
    ASSERT_TRUE(frame.ok()) << frame.error().message;
    const auto message = wire::decode_attach(frame->bytes());
    EXPECT_TRUE(message.ok() && std::holds_alternative<wire::Welcome>(*message));
  }
}

TEST_F(BadAttach, AFrameOnlyTheDaemonSendsEndsTheSession) {
  auto engine = RawEngine::attach(daemon_.endpoint(), "upside-down");
  ASSERT_TRUE(engine.ok());
  wire::Welcome welcome;
  ASSERT_TRUE(engine->connection().send(wire::seal(welcome)).ok());
  EXPECT_TRUE(poll_until(
      [&] { return engine->call(wire::PingCommand{}).code() == ErrorCode::kStaleSession; }));
}

TEST_F(BadAttach, AcknowledgementsOfSlabsNeverSentChangeNothing) {
  auto engine = RawEngine::attach(daemon_.endpoint(), "eager", {4, 0, 0, 0, 1024});
  ASSERT_TRUE(engine.ok());
  for (const std::uint32_t slab : {0u, 1u, 7u, 8u, 0xffffffffu}) {
    wire::SlabMapped mapped;
    mapped.notice.slab = slab;
    ASSERT_TRUE(engine->connection().send(wire::seal(mapped)).ok());
    wire::SlabUnmapped unmapped;
    unmapped.notice.slab = slab;
    ASSERT_TRUE(engine->connection().send(wire::seal(unmapped)).ok());
  }
  EXPECT_TRUE(engine->call(wire::PingCommand{}).ok());
}

}  // namespace
}  // namespace kvd::test
