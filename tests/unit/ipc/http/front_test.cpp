#include "ipc/http/front.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <future>

#include "tests/support/free_port.hpp"
#include "tests/support/patience.hpp"
#include "tests/unit/kvd/admin/http.hpp"

namespace kvd::http {
namespace {
using admin::connected;
using admin::http_exchange;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

const std::string kGet = "GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n";

std::string refusal(int status, const std::string& message) {
  return std::to_string(status) + ": " + message;
}

void say(const UniqueFd& socket, const std::string& text) {
  ASSERT_EQ(::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(text.size()));
}

/// What the other side says until it hangs up.
std::string hear(const UniqueFd& socket) {
  std::string heard;
  char piece[4096];
  for (ssize_t n = 0; (n = ::recv(socket.get(), piece, sizeof piece, 0)) > 0;) {
    heard.append(piece, static_cast<std::size_t>(n));
  }
  return heard;
}

class FrontTest : public testing::Test {
 protected:
  void SetUp() override {
    options_.port = test::free_port();
    options_.limits.readers = 4;
    options_.limits.connections = 6;
    options_.limits.backlog = 1 * kMiB;
    options_.refusal = refusal;
    options_.clock = &clock_;
    auto made =
        Front::start(options_, [this](const Request& request, std::shared_ptr<Exchange> exchange) {
          if (request.target == "/kept") {
            kept_.set_value(std::move(exchange));
          } else {
            exchange->answer(200, request.method + " " + request.target + " " + request.body);
          }
        });
    ASSERT_TRUE(made.ok()) << made.error().message;
    sut_ = std::move(*made);
  }
  [[nodiscard]] std::uint16_t port() const { return options_.port; }

  ManualClock clock_{TimePoint(std::chrono::hours(1))};
  Front::Options options_;
  std::promise<std::shared_ptr<Exchange>> kept_;
  std::unique_ptr<Front> sut_;
};

TEST_F(FrontTest, AnswersOneRequestAConnection) {
  EXPECT_THAT(http_exchange(port(), kGet + kGet),
              AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("Connection: close"),
                    testing::EndsWith("\r\n\r\nGET /x ")));
}

TEST_F(FrontTest, HeadIsGetWithoutItsBody) {
  const std::string answer = http_exchange(port(), "HEAD /x HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(answer, AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("Content-Length: 7\r\n"),
                            testing::EndsWith("\r\n\r\n")));
  const std::string refused = http_exchange(port(), "HEAD /x HTTP/1.1\r\n\r\n");
  EXPECT_THAT(refused, AllOf(StartsWith("HTTP/1.1 403"), testing::EndsWith("\r\n\r\n")));
}

TEST_F(FrontTest, AHeadOfAnAnswerInPiecesIsItsFirst) {
  auto kept = kept_.get_future();
  const UniqueFd client = connected(port());
  say(client, "HEAD /kept HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const auto exchange = kept.get();
  exchange->write("HTTP/1.1 200 OK\r\n\r\nbody", false);
  exchange->write("more", false);
  EXPECT_EQ(hear(client), "HTTP/1.1 200 OK\r\n\r\n");
}

TEST_F(FrontTest, ABalancersOptionsIsAnswered) {
  for (const char* target : {"/", "*"}) {
    EXPECT_THAT(http_exchange(port(), "OPTIONS " + std::string(target) + " HTTP/1.0\r\n\r\n"),
                AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("Connection: close\r\n")));
  }
}

TEST_F(FrontTest, RefusesInTheCallersWords) {
  EXPECT_THAT(http_exchange(port(), "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 403 Forbidden"), HasSubstr("403: the Host header")));
}

TEST_F(FrontTest, AnAnswerReachesAClientThatIsStillSending) {
  std::string huge = "PATCH / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50000000\r\n\r\n";
  huge.resize(huge.size() + 50'000'000, ' ');
  EXPECT_THAT(http_exchange(port(), huge), StartsWith("HTTP/1.1 413"));
}

TEST_F(FrontTest, GivesLeaveToSend) {
  const UniqueFd client = connected(port());
  say(client,
      "PATCH / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Content-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  char leave[25];
  ASSERT_EQ(::recv(client.get(), leave, sizeof leave, MSG_WAITALL), 25);
  EXPECT_THAT(std::string(leave, 25), StartsWith("HTTP/1.1 100"));
  say(client, "{}");
  EXPECT_THAT(hear(client), HasSubstr("PATCH / {}"));
}

TEST_F(FrontTest, RequestsThatDoNotArriveAreEndedAtTheirDeadline) {
  const UniqueFd silent = connected(port()), header = connected(port()), body = connected(port());
  say(header, "GET / HTTP/1.1\r\nHost: loc");
  say(body,
      "PATCH / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Content-Length: 2\r\n\r\n{");
  EXPECT_THAT(http_exchange(port(), kGet), StartsWith("HTTP/1.1 200"));  // they are accepted now
  clock_.advance(options_.limits.arrival);
  for (const UniqueFd* client : {&silent, &header, &body}) {
    EXPECT_THAT(hear(*client), StartsWith("HTTP/1.1 408"));
  }
}

TEST_F(FrontTest, SilentClientsMakeWayForOneThatSpeaks) {
  constexpr std::size_t kClients = 200;
  std::vector<UniqueFd> silent;
  silent.reserve(kClients);
  while (silent.size() < kClients) silent.push_back(connected(port()));
  for (int i = 0; i < 20; ++i) EXPECT_THAT(http_exchange(port(), kGet), StartsWith("HTTP/1.1 200"));
  EXPECT_EQ(hear(silent.front()), "") << "hung up on";
}

TEST_F(FrontTest, ClientsBeyondTheBoundAreHungUpOn) {
  std::vector<UniqueFd> waiting;
  std::vector<std::shared_ptr<Exchange>> exchanges;
  for (std::size_t i = 0; i < options_.limits.connections; ++i) {
    kept_ = {};
    waiting.push_back(connected(port()));
    say(waiting.back(), "GET /kept HTTP/1.1\r\nHost: localhost\r\n\r\n");
    exchanges.push_back(kept_.get_future().get());
  }
  EXPECT_EQ(http_exchange(port(), kGet), "");
  exchanges.front()->answer(200, "late");
  EXPECT_THAT(hear(waiting.front()), HasSubstr("late"));
  waiting.front().reset();
  EXPECT_TRUE(test::poll_until([&] { return http_exchange(port(), kGet) != ""; }));
}

TEST_F(FrontTest, AnAnswerMayComeInPiecesAndTellsWhenItIsSent) {
  const UniqueFd client = connected(port());
  say(client, "GET /kept HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const auto exchange = kept_.get_future().get();
  std::promise<bool> sent;
  exchange->on_end([&](bool all) { sent.set_value(all); });
  exchange->write("one ", false);
  exchange->write("two", true);
  EXPECT_EQ(hear(client), "one two");
  EXPECT_TRUE(sent.get_future().get());
}

TEST_F(FrontTest, AClientThatLeavesEndsItsAnswer) {
  UniqueFd client = connected(port());
  say(client, "GET /kept HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const auto exchange = kept_.get_future().get();
  std::promise<bool> sent;
  auto ended = sent.get_future();
  exchange->on_end([&](bool all) { sent.set_value(all); });
  client.reset();
  EXPECT_TRUE(test::poll_until([&] {
    exchange->write("more ", false);
    return ended.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }));
  EXPECT_FALSE(ended.get());
}

TEST_F(FrontTest, AClientThatDoesNotReadIsHungUpOn) {
  const UniqueFd client = connected(port());
  say(client, "GET /kept HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const auto exchange = kept_.get_future().get();
  std::promise<bool> sent;
  auto ended = sent.get_future();
  exchange->on_end([&](bool all) { sent.set_value(all); });
  EXPECT_TRUE(test::poll_until([&] {
    exchange->write(std::string(1 << 20, 'x'), false);
    return ended.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }));
  EXPECT_FALSE(ended.get());
}

TEST_F(FrontTest, AnExchangeThatIsDroppedHangsUp) {
  const UniqueFd client = connected(port());
  say(client, "GET /kept HTTP/1.1\r\nHost: localhost\r\n\r\n");
  kept_.get_future().get().reset();
  kept_ = {};
  EXPECT_EQ(hear(client), "");
}

TEST_F(FrontTest, ItsEndEndsEverything) {
  const UniqueFd client = connected(port());
  say(client, "GET /kept HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const auto exchange = kept_.get_future().get();
  sut_.reset();
  EXPECT_EQ(hear(client), "");
  bool all = true;
  exchange->on_end([&](bool sent) { all = sent; });
  EXPECT_FALSE(all);
  SetUp();  // the port is free again
}

TEST(FrontStart, OnlyTheLoopbackAndARealPort) {
  for (const char* address : {"0.0.0.0", "10.0.0.1", "::", "example.org", "localhost", ""}) {
    const auto sut = Front::start({.address = address, .port = 8470}, {});
    ASSERT_FALSE(sut.ok()) << address;
    EXPECT_EQ(sut.error().code, ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(Front::start({.port = 0}, {}).error().code, ErrorCode::kInvalidArgument);
}

TEST(FrontStart, ATakenPortIsUnavailable) {
  const Front::Options options{.port = test::free_port()};
  const auto first = Front::start(options, {});
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(Front::start(options, {}).error().code, ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace kvd::http
