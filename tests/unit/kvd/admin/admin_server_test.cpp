#include "kvd/admin/admin_server.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <fstream>

#include "tests/support/free_port.hpp"
#include "tests/unit/kvd/admin/fake_backend.hpp"
#include "tests/unit/kvd/admin/http.hpp"

namespace kvd::admin {
namespace {
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* kToken = FakeBackend::kToken;

std::string request_text(const std::string& line, const std::string& headers,
                         const std::string& body = "") {
  return line + " HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n" + headers +
         "Content-Type: application/merge-patch+json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

/// Peak resident memory of this process in KiB.
[[maybe_unused]] long peak_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stol(line.substr(6));
  }
  return 0;
}

class AdminServerTest : public testing::Test {
 protected:
  AdminServerTest() { config.port = test::free_port(); }

  void SetUp() override {
    auto started = AdminServer::start(config, backend);
    ASSERT_TRUE(started.ok()) << started.error().to_string();
    sut = std::move(*started);
  }
  std::string get(const std::string& path) {
    return http_exchange(config.port, request_text("GET " + path, ""));
  }
  std::string patch(const std::string& path, const std::string& body,
                    const std::string& headers = std::string("Authorization: Bearer ") + kToken +
                                                 "\r\n") {
    return http_exchange(config.port, request_text("PATCH " + path, headers, body));
  }

  FakeBackend backend;
  AdminServer::Config config;
  std::unique_ptr<AdminServer> sut;
};

TEST_F(AdminServerTest, ServesDocuments) {
  EXPECT_THAT(get("/healthz"), AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("application/json"),
                                     HasSubstr("{\"status\":\"ok\"}")));
  EXPECT_THAT(get("/v1/policy"), AllOf(HasSubstr("ETag: \""), HasSubstr("\"beta_f\": 0.5")));
  EXPECT_THAT(get("/v1/status?x=1"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(get("/nothing"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(get("/%zz"), StartsWith("HTTP/1.1 400"));
}

TEST_F(AdminServerTest, AppliesAPatch) {
  EXPECT_THAT(patch("/v1/policy", R"({"rotation": {"policy": "fcfs"}})"),
              AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("\"fcfs\"")));
  EXPECT_EQ(backend.tuning().rotation.policy, "fcfs");
  EXPECT_THAT(patch("/v1/policy", "{\"rotation\": {"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(patch("/v1/policy", R"({"rotation": {"alpha": 9}})", "If-Match: \"old\"\r\n"),
              AllOf(StartsWith("HTTP/1.1 401"), HasSubstr("WWW-Authenticate: Bearer")));
  EXPECT_EQ(backend.changes(), 1);
}

TEST_F(AdminServerTest, ServesTheConsoleUnderAPolicyOnContent) {
  EXPECT_THAT(get("/"), AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("Content-Type: text/html"),
                              HasSubstr("default-src 'none'; script-src 'self'"),
                              HasSubstr("frame-ancestors 'none'"), HasSubstr("nosniff")));
  EXPECT_THAT(get("/console/main.js"), HasSubstr("Content-Type: text/javascript"));
}

/// Watches the overview over one connection.
class Watch {
 public:
  explicit Watch(std::uint16_t port, const std::string& headers = "") : socket_(connected(port)) {
    const std::string text =
        request_text("GET /v1/overview", "Accept: text/event-stream\r\n" + headers);
    (void)::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL);
  }
  /// Reads until `text` was seen `times` times; false where the stream ends before.
  bool sees(const std::string& text, int times) {
    for (;;) {
      int found = 0;
      for (std::size_t at = 0; (at = all_.find(text, at)) != std::string::npos; ++at) ++found;
      if (found >= times) return true;
      if (!read()) return false;
    }
  }
  bool ends() {
    while (read()) {
    }
    return errno != EAGAIN;
  }
  [[nodiscard]] const std::string& all() const { return all_; }

 private:
  bool read() {
    char piece[4096];
    errno = 0;
    const ssize_t n = ::recv(socket_.get(), piece, sizeof piece, 0);
    if (n > 0) all_.append(piece, static_cast<std::size_t>(n));
    return n > 0;
  }
  UniqueFd socket_;
  std::string all_;
};

class AdminStreamTest : public AdminServerTest {
 protected:
  AdminStreamTest() {
    config.most_watchers = 2;
    config.watch_interval = std::chrono::milliseconds(5);
  }
};

TEST_F(AdminStreamTest, TellsTheSameAgainAndAgain) {
  Watch watch(config.port);
  EXPECT_TRUE(watch.sees("event: overview\ndata: {\"now_s\":90.0,", 3)) << watch.all();
  EXPECT_THAT(watch.all(), HasSubstr("Content-Type: text/event-stream"));
  backend.edit([](Snapshot& s) { s.now = TimePoint(std::chrono::seconds(91)); });
  EXPECT_TRUE(watch.sees("data: {\"now_s\":91.0,", 2));
}

TEST_F(AdminStreamTest, HasRoomForSoManyAndForOthersWhenOneLeaves) {
  Watch first(config.port);
  ASSERT_TRUE(first.sees("data: ", 1));
  {
    Watch second(config.port);
    ASSERT_TRUE(second.sees("data: ", 1));
    Watch third(config.port);
    EXPECT_TRUE(third.ends());
    EXPECT_THAT(third.all(), AllOf(StartsWith("HTTP/1.1 503"), HasSubstr("ask again")));
    EXPECT_THAT(get("/v1/overview"), StartsWith("HTTP/1.1 200"));
  }
  bool in = false;
  for (int tries = 0; !in && tries < 2000; ++tries) {
    Watch next(config.port);
    in = next.sees("data: ", 1);
    ASSERT_TRUE(first.sees("data: ", tries + 2));  // which paces this loop, too
  }
  EXPECT_TRUE(in);
}

TEST_F(AdminStreamTest, WhoBearsTheTokenTakesAStrangersPlace) {
  Watch first(config.port);
  ASSERT_TRUE(first.sees("data: ", 1)) << "it is there before the second one comes";
  Watch second(config.port);
  ASSERT_TRUE(second.sees("data: ", 1));
  const std::string token = std::string("Authorization: Bearer ") + kToken + "\r\n";
  Watch bearer(config.port, token);
  EXPECT_TRUE(bearer.sees("data: ", 3)) << bearer.all();
  EXPECT_TRUE(first.ends());
  EXPECT_TRUE(second.sees("data: ", 3));
  Watch another(config.port, token);
  EXPECT_TRUE(another.sees("data: ", 3)) << another.all();
  Watch third(config.port, token);
  EXPECT_TRUE(third.ends()) << "all places are bearers'";
}

// The other's events tell when many have been sent.
TEST_F(AdminStreamTest, OneThatDoesNotReadHasFewEventsWaiting) {
  constexpr std::size_t kLarge = std::size_t{4} << 20;
  backend.edit([](Snapshot& s) { s.happenings[0].text = std::string(kLarge, 'x'); });
  Watch idle(config.port), busy(config.port);
  ASSERT_TRUE(idle.sees("data: ", 1));
  ASSERT_TRUE(busy.sees("event: overview", 12));
  sut.reset();
  EXPECT_TRUE(idle.ends());
  EXPECT_LT(idle.all().size(), 6 * kLarge) << "two, and what the kernel holds of a connection";
}

TEST_F(AdminStreamTest, EndsForWhoMayNotReadAnyMore) {
  Watch stranger(config.port);
  Watch bearer(config.port, std::string("Authorization: Bearer ") + kToken + "\r\n");
  ASSERT_TRUE(stranger.sees("data: ", 1));
  backend.edit([](Snapshot& s) { s.read = ReadPolicy::kToken; });
  EXPECT_TRUE(stranger.ends());
  EXPECT_THAT(stranger.all(), HasSubstr("event: refused\ndata: {"));
  EXPECT_TRUE(bearer.sees("event: overview", 5));
}

TEST_F(AdminStreamTest, EndsWithTheServer) {
  Watch watch(config.port);
  ASSERT_TRUE(watch.sees("data: ", 1));
  sut.reset();
  EXPECT_TRUE(watch.ends());
}

TEST_F(AdminServerTest, OtherMethodsAndHostsAreRefused) {
  for (const char* method : {"PUT", "DELETE", "OPTIONS", "TRACE", "POST"}) {
    const std::string line = std::string(method) + " /v1/policy";
    EXPECT_THAT(http_exchange(config.port, request_text(line, "X-Secret: abc\r\n")),
                AllOf(StartsWith("HTTP/1.1 405"), HasSubstr("Allow: GET, PATCH"),
                      testing::Not(HasSubstr("abc"))))
        << method;
  }
  EXPECT_THAT(
      http_exchange(config.port,
                    "GET /healthz HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n"),
      StartsWith("HTTP/1.1 403"));
}

TEST_F(AdminServerTest, LongBodiesAreRefusedAndNotKept) {
  EXPECT_THAT(patch("/v1/policy", std::string(65'537, ' ')), StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(patch("/v1/policy", "{}" + std::string(65'534, ' ')), StartsWith("HTTP/1.1 200"));
  const std::string huge = request_text("PATCH /v1/policy", "", std::string(48u << 20, ' '));
  [[maybe_unused]] const long before = peak_kib();
  EXPECT_THAT(http_exchange(config.port, huge), StartsWith("HTTP/1.1 413"));
#ifndef __SANITIZE_ADDRESS__  // the allocator keeps freed memory for a while
  EXPECT_LT(peak_kib() - before, 24 << 10);
#endif
}

TEST_F(AdminServerTest, BodiesNeedALength) {
  EXPECT_THAT(http_exchange(config.port,
                            "PATCH /v1/policy HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                            "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"),
              StartsWith("HTTP/1.1 411"));
}

TEST_F(AdminServerTest, GarbageLeavesItServing) {
  EXPECT_TRUE(http_send(config.port, "\x01\x02\x03\r\n\r\n"));
  EXPECT_TRUE(http_send(config.port, "GET / HTTP/1.1\r\nContent-Length: -5\r\n\r\n"));
  EXPECT_TRUE(http_send(config.port, "PATCH /v1/slo HTTP/1.1\r\nContent-Length: zz\r\n\r\n"));
  EXPECT_THAT(get("/healthz"), StartsWith("HTTP/1.1 200"));
}

TEST_F(AdminServerTest, AClientThatStallsDoesNotHoldUpTheEnd) {
  const UniqueFd stalled = connected(config.port);
  const std::string half =
      "PATCH /v1/slo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{";
  ASSERT_EQ(::send(stalled.get(), half.data(), half.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(half.size()));
  EXPECT_THAT(get("/healthz"), StartsWith("HTTP/1.1 200"));
  const auto start = std::chrono::steady_clock::now();
  sut.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
}

TEST_F(AdminServerTest, TakenPortIsUnavailableWithARemedy) {
  auto second = AdminServer::start(config, backend);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(second.error().message, HasSubstr("choose another port"));
  EXPECT_THAT(get("/healthz"), StartsWith("HTTP/1.1 200"));
}

TEST_F(AdminServerTest, ThePortIsFreeAfterwards) {
  sut.reset();
  EXPECT_EQ(get("/healthz"), "");
  SetUp();
  EXPECT_THAT(get("/healthz"), StartsWith("HTTP/1.1 200"));
}

TEST(AdminServerConfig, OnlyLoopbackAndARealPort) {
  FakeBackend backend;
  for (const char* address : {"0.0.0.0", "10.0.0.1", "::", "example.org", "localhost", ""}) {
    AdminServer::Config config;
    config.address = address;
    const auto sut = AdminServer::start(config, backend);
    ASSERT_FALSE(sut.ok()) << address;
    EXPECT_EQ(sut.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(sut.error().message, HasSubstr("127.0.0.1"));
  }
  AdminServer::Config config;
  config.port = 0;
  EXPECT_EQ(AdminServer::start(config, backend).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvd::admin
