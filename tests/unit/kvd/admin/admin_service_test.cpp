#include "kvd/admin/admin_service.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "tests/unit/kvd/admin/fake_backend.hpp"

namespace kvd::admin {
namespace {
using nlohmann::json;
using testing::HasSubstr;

constexpr const char* kToken = "0123456789abcdef";

class AdminServiceTest : public testing::Test {
 protected:
  HttpRequest get(const std::string& path) { return {"GET", path, "127.0.0.1:8470", "", "", ""}; }
  HttpRequest patch(const std::string& path, const std::string& body) {
    return {"PATCH", path, "localhost", std::string("Bearer ") + kToken, "", body};
  }

  FakeBackend backend;
  AdminService sut{{.token = kToken}, backend};
};

TEST_F(AdminServiceTest, EveryDocumentIsJson) {
  for (const char* path :
       {"/healthz", "/readyz", "/v1/status", "/v1/config", "/v1/pools", "/v1/engines",
        "/v1/requests", "/v1/plan", "/v1/events", "/v1/policy", "/v1/slo", "/openapi.json"}) {
    SCOPED_TRACE(path);
    const auto answer = sut.handle(get(path));
    EXPECT_EQ(answer.status, 200);
    EXPECT_TRUE(json::parse(answer.body).is_object());
  }
}

TEST_F(AdminServiceTest, DescriptionNamesEveryPath) {
  const json paths = json::parse(sut.handle(get("/openapi.json")).body)["paths"];
  EXPECT_EQ(paths.size(), 15u);
  EXPECT_TRUE(paths["/v1/policy"].contains("patch"));
  EXPECT_FALSE(paths["/v1/status"].contains("patch"));
}

TEST_F(AdminServiceTest, UnknownPathIs404WithTheKnownOnes) {
  const auto answer = sut.handle(get("/v1/polcy"));
  EXPECT_EQ(answer.status, 404);
  EXPECT_THAT(answer.body, HasSubstr("/v1/policy"));
}

TEST_F(AdminServiceTest, OtherMethodsAre405) {
  for (const char* method : {"PUT", "POST", "DELETE", "HEAD", "OPTIONS", "TRACE", "get"}) {
    HttpRequest request = patch("/v1/policy", "{}");
    request.method = method;
    const auto answer = sut.handle(request);
    EXPECT_EQ(answer.status, 405) << method;
    EXPECT_EQ(answer.allow, "GET, PATCH");
  }
  EXPECT_EQ(sut.handle(patch("/v1/status", "{}")).status, 405);
}

TEST_F(AdminServiceTest, AChangeTakesEffectAndAnswersTheWholeDocument) {
  const auto answer = sut.handle(patch("/v1/policy", R"({"rotation": {"alpha": 2}})"));
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(backend.tuning().rotation.alpha, 2);
  const auto now = sut.handle(get("/v1/policy"));
  EXPECT_EQ(answer.body, now.body);
  EXPECT_EQ(answer.etag, now.etag);
  EXPECT_EQ(json::parse(answer.body)["rotation"]["policy"], "unified");
}

TEST_F(AdminServiceTest, ChangesNeedTheToken) {
  for (const char* header : {"", "Bearer ", "Bearer 0123456789abcdeF", "Bearer 0123456789abcde",
                             "Bearer 0123456789abcdef0", "0123456789abcdef",
                             "Bearer 0123456789abcdef0123456789abcdef", "Basic 0123456789abcdef"}) {
    HttpRequest request = patch("/v1/slo", R"({"classes": {"default": {"tbt_s": 1}}})");
    request.authorization = header;
    const auto answer = sut.handle(request);
    EXPECT_EQ(answer.status, 401) << header;
    EXPECT_TRUE(answer.challenge);
    EXPECT_EQ(answer.body.find(kToken), std::string::npos);
  }
  EXPECT_EQ(backend.retunes(), 0);
}

TEST_F(AdminServiceTest, WithoutATokenNobodyMayChange) {
  AdminService closed({.token = ""}, backend);
  HttpRequest request = patch("/v1/policy", "{}");
  request.authorization = "Bearer ";
  EXPECT_EQ(closed.handle(request).status, 401);
}

TEST_F(AdminServiceTest, ReadingMayNeedTheTokenToo) {
  AdminService closed({.token = kToken, .read = ReadPolicy::kToken}, backend);
  EXPECT_EQ(closed.handle(get("/v1/status")).status, 401);
  EXPECT_EQ(closed.handle(get("/healthz")).status, 200);
  EXPECT_EQ(closed.handle(get("/readyz")).status, 200);
  HttpRequest request = get("/v1/status");
  request.authorization = std::string("Bearer ") + kToken;
  EXPECT_EQ(closed.handle(request).status, 200);
}

TEST_F(AdminServiceTest, OnlyLoopbackHostNames) {
  for (const char* host : {"127.0.0.1", "127.0.0.1:8470", "localhost", "localhost:1", "[::1]",
                           "[::1]:8470", "127.1.2.3:80"}) {
    HttpRequest request = get("/healthz");
    request.host = host;
    EXPECT_EQ(sut.handle(request).status, 200) << host;
  }
  for (const char* host : {"", "evil.example", "evil.example:8470", "127.0.0.1.evil.example",
                           "localhost.evil.example", "[::1].evil.example", "10.0.0.1", ":8470"}) {
    HttpRequest request = get("/healthz");
    request.host = host;
    EXPECT_EQ(sut.handle(request).status, 403) << host;
  }
}

TEST_F(AdminServiceTest, IfMatchGuardsAgainstLostUpdates) {
  const std::string before = sut.handle(get("/v1/slo")).etag;
  HttpRequest request = patch("/v1/slo", R"({"classes": {"default": {"tbt_s": 0.05}}})");
  request.if_match = before;
  EXPECT_EQ(sut.handle(request).status, 200);
  EXPECT_EQ(sut.handle(request).status, 412);
  request.if_match = "*";
  EXPECT_EQ(sut.handle(request).status, 200);
}

TEST_F(AdminServiceTest, ARefusedPatchIs400WithPath) {
  const auto answer = sut.handle(patch("/v1/policy", R"({"rotation": {"policy": "magic"}})"));
  EXPECT_EQ(answer.status, 400);
  const json body = json::parse(answer.body);
  EXPECT_EQ(body["error"], "InvalidArgument");
  EXPECT_EQ(body["path"], "/rotation/policy");
  EXPECT_THAT(body["message"], HasSubstr("lvf"));
  EXPECT_EQ(backend.retunes(), 0);
}

TEST_F(AdminServiceTest, AControlThreadThatDoesNotAnswerIs504) {
  backend.fail(make_error(ErrorCode::kDeadlineExceeded, "the control thread is busy"));
  EXPECT_EQ(sut.handle(get("/v1/engines")).status, 504);
  EXPECT_EQ(sut.handle(get("/v1/policy")).status, 504);
  EXPECT_EQ(sut.handle(get("/healthz")).status, 200);
  backend.fail(make_error(ErrorCode::kUnavailable, "draining"));
  EXPECT_EQ(sut.handle(patch("/v1/policy", "{}")).status, 503);
}

TEST_F(AdminServiceTest, ConcurrentChangesAllCount) {
  constexpr int kClients = 4, kChanges = 10;
  std::vector<std::thread> clients;
  for (int c = 0; c < kClients; ++c) {
    clients.emplace_back([&, c] {
      for (int i = 0; i < kChanges; ++i) {
        const std::string slo_class = "c" + std::to_string(c) + "_" + std::to_string(i);
        EXPECT_EQ(sut.handle(patch("/v1/slo", "{\"classes\": {\"" + slo_class + "\": {}}}")).status,
                  200);
      }
    });
  }
  for (auto& client : clients) client.join();
  EXPECT_EQ(backend.tuning().slo.size(), 1u + kClients * kChanges);
}

TEST_F(AdminServiceTest, ReadinessFollowsTheBackend) {
  backend.set_ready(false);
  EXPECT_EQ(sut.handle(get("/readyz")).status, 503);
  EXPECT_EQ(sut.handle(get("/healthz")).status, 200);
}

}  // namespace
}  // namespace kvd::admin
