#include "ipc/http/request_reader.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace kvd::http {
namespace {
using testing::HasSubstr;
using State = RequestReader::State;

constexpr RequestReader::Limits kLimits{.header = 1 * kKiB, .body = 100 * Bytes(1)};
const std::string kJson = "Content-Type: application/json\r\n";

std::string request(const std::string& line, const std::string& headers = "",
                    const std::string& body = "") {
  return line + "\r\nHost: localhost\r\n" + headers + "\r\n" + body;
}

/// The status with which it is refused; 200: it is complete; 0: more has to come.
int status_of(const std::string& text) {
  RequestReader sut(kLimits);
  const State state = sut.feed(text);
  return state == State::kRefused ? sut.refusal().status : state == State::kComplete ? 200 : 0;
}

TEST(RequestReader, TakesARequestInWhateverPiecesItComes) {
  const std::string text =
      request("PATCH /v1/slo?x=1 HTTP/1.1", kJson + "Content-Length: 2\r\nX-Odd:  a b \r\n", "{}");
  for (std::size_t piece = 1; piece <= text.size(); ++piece) {
    RequestReader sut(kLimits);
    for (std::size_t at = 0; at < text.size(); at += piece) {
      ASSERT_NE(sut.state(), State::kComplete) << "by " << piece;
      (void)sut.feed(std::string_view(text).substr(at, piece));
    }
    ASSERT_EQ(sut.state(), State::kComplete) << "by " << piece;
    const Request taken = sut.take();
    EXPECT_EQ(taken.method, "PATCH");
    EXPECT_EQ(taken.target, "/v1/slo?x=1");
    EXPECT_EQ(taken.header("x-odd"), "a b");
    EXPECT_EQ(taken.body, "{}");
  }
}

TEST(RequestReader, RefusesWhatIsNoPlainRequest) {
  for (const char* line :
       {"", "GET", "GET /", "GET  / HTTP/1.1", "GET http://localhost/ HTTP/1.1", "GET * HTTP/1.1",
        "G(T / HTTP/1.1", "GET /\x01 HTTP/1.1", "GET /\xff HTTP/1.1", "GET /a\nb HTTP/1.1",
        "AVERYLONGMETHODNAME / HTTP/1.1"}) {
    EXPECT_EQ(status_of(request(line)), 400) << line;
  }
  for (const char* version : {"HTTP/0.9", "HTTP/2.0", "HTTP/1.00", "http/1.0", "HTTP/1.0 "}) {
    EXPECT_EQ(status_of(request("GET / " + std::string(version))), 505) << version;
  }
  for (const char* header : {"no colon", ": no name", "name : x", " folded: x", "a: b\nc: d",
                             "a: \x01", "a: \xc3\xa4", "Host: localhost", "host: localhost"}) {
    EXPECT_EQ(status_of(request("GET / HTTP/1.1", std::string(header) + "\r\n")), 400) << header;
  }
}

// Proxies and balancers ask so: nginx its upstreams, HAProxy and ab by default.
TEST(RequestReader, HttpOfTheFirstVersionIsReadAndNeedsNoHost) {
  EXPECT_EQ(status_of(request("GET / HTTP/1.0")), 200);
  EXPECT_EQ(status_of("OPTIONS / HTTP/1.0\r\n\r\n"), 200);
  EXPECT_EQ(status_of("OPTIONS * HTTP/1.0\r\n\r\n"), 200);
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\n\r\n"), 403);
  EXPECT_EQ(status_of("GET / HTTP/1.0\r\nHost: evil.example\r\n\r\n"), 403);
}

TEST(RequestReader, BodiesNeedOneSoundLengthAndNoChunks) {
  const auto with = [](const std::string& headers) {
    return status_of(request("PATCH / HTTP/1.1", kJson + headers));
  };
  EXPECT_EQ(with("Transfer-Encoding: chunked\r\n"), 411);
  EXPECT_EQ(with("Content-Length: 2\r\nTransfer-Encoding: chunked\r\n"), 411);
  for (const char* length : {"-2", "+2", "0x2", "2 2", "2,2", "zz", "-0"}) {
    EXPECT_EQ(with("Content-Length: " + std::string(length) + "\r\n"), 400) << length;
  }
  EXPECT_EQ(with("Content-Length: 2\r\nContent-Length: 2\r\n"), 400);
  EXPECT_EQ(with("Content-Length: 100\r\n"), 0);
  EXPECT_EQ(with("Content-Length: 101\r\n"), 413);
  EXPECT_EQ(with("Content-Length: 99999999999999999999999999\r\n"), 413);
}

TEST(RequestReader, HeadersWithoutEndAreRefusedAtTheLimit) {
  RequestReader sut(kLimits);
  (void)sut.feed("GET / HTTP/1.1\r\n");
  int lines = 0;
  while (sut.feed("a: b\r\n") == State::kHeader) ASSERT_LT(++lines, 1024);
  EXPECT_EQ(sut.refusal().status, 431);
}

TEST(RequestReader, OnlyTheLoopbackMayBeMeant) {
  const auto with = [](const std::string& host) {
    return status_of("GET / HTTP/1.1\r\nHost: " + host + "\r\n\r\n");
  };
  for (const char* host : {"127.0.0.1", "127.0.0.1:8470", "localhost", "localhost:1", "[::1]",
                           "[::1]:8470", "127.1.2.3:80"}) {
    EXPECT_EQ(with(host), 200) << host;
  }
  for (const char* host :
       {"", "evil.example", "evil.example:8470", "127.0.0.1.evil.example", "localhost.evil.example",
        "[::1].evil.example", "10.0.0.1", ":8470", "localhost:80@evil.example"}) {
    EXPECT_EQ(with(host), 403) << host;
  }
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\n\r\n"), 403);
}

TEST(RequestReader, ForeignOriginsAndBodiesThatAreNoJsonAreRefused) {
  const auto from = [](const std::string& origin) {
    return status_of(request("GET / HTTP/1.1", "Origin: " + origin + "\r\n"));
  };
  EXPECT_EQ(from("http://127.0.0.1:8470"), 200);
  for (const char* origin : {"null", "https://evil.example", "http://evil.example",
                             "http://localhost.evil.example", "http://localhost:80@evil.example"}) {
    EXPECT_EQ(from(origin), 403) << origin;
  }
  const auto of_type = [](const std::string& header) {
    return status_of(request("POST / HTTP/1.1", header + "Content-Length: 2\r\n", "{}"));
  };
  EXPECT_EQ(of_type("Content-Type: application/json; charset=utf-8\r\n"), 200);
  EXPECT_EQ(of_type("Content-Type: Application/Merge-Patch+JSON\r\n"), 200);
  EXPECT_EQ(of_type("Content-Type: text/plain\r\n"), 415);
  EXPECT_EQ(of_type("Content-Type: application/jsonx\r\n"), 415);
  EXPECT_EQ(of_type(""), 415);
}

TEST(RequestReader, KnowsWhoWaitsForLeaveToSend) {
  RequestReader sut(kLimits);
  (void)sut.feed(
      request("POST / HTTP/1.1", kJson + "Content-Length: 2\r\nExpect: 100-continue\r\n"));
  EXPECT_TRUE(sut.waits_for_leave());
  EXPECT_EQ(sut.feed("{}"), State::kComplete);
}

TEST(RequestReader, SurvivesAnyBytes) {
  const unsigned seed = std::random_device()();
  std::mt19937 random(seed);
  const std::string sound = request("POST /v1 HTTP/1.1", kJson + "Content-Length: 4\r\n", "true");
  for (int round = 0; round < 20'000; ++round) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", round " + std::to_string(round));
    std::string text = sound;
    for (int changes = 0; changes < 3; ++changes) {
      text[random() % text.size()] = static_cast<char>(random() % 256);
    }
    RequestReader sut(kLimits);
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t piece = 1 + random() % 40;
      (void)sut.feed(std::string_view(text).substr(at, piece));
      at += piece;
    }
    if (sut.state() == State::kComplete) {
      const Request taken = sut.take();
      ASSERT_LE(taken.body.size(), 100u);
      ASSERT_EQ(taken.target[0], '/');
    } else if (sut.state() == State::kRefused) {
      ASSERT_GE(sut.refusal().status, 400);
    }
  }
}

}  // namespace
}  // namespace kvd::http
