#include "kvd/admin/admin_service.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <thread>
#include <vector>

#include "tests/unit/kvd/admin/fake_backend.hpp"

namespace kvd::admin {
namespace {
using nlohmann::json;
using testing::HasSubstr;

constexpr const char* kToken = FakeBackend::kToken;

class AdminServiceTest : public testing::Test {
 protected:
  HttpRequest get(const std::string& path) { return {"GET", path, "", "", ""}; }
  HttpRequest patch(const std::string& path, const std::string& body) {
    std::string bearer = "Bearer ";
    bearer += kToken;
    return {"PATCH", path, bearer, "", body};
  }

  FakeBackend backend;
  AdminService sut{backend};
};

TEST_F(AdminServiceTest, EveryDocumentIsJson) {
  for (const char* path :
       {"/healthz", "/readyz", "/v1/status", "/v1/config", "/v1/pools", "/v1/engines",
        "/v1/requests", "/v1/cache", "/v1/remote", "/v1/advice", "/v1/load", "/v1/plan",
        "/v1/events", "/v1/overview", "/v1/history", "/v1/policy", "/v1/slo", "/openapi.json"}) {
    SCOPED_TRACE(path);
    const auto answer = sut.handle(get(path));
    EXPECT_EQ(answer.status, 200);
    EXPECT_TRUE(json::parse(answer.body).is_object());
  }
}

TEST_F(AdminServiceTest, AValueThatOnlyOthersAreInTheWayOfIsAConflict) {
  const auto status = [&](const char* path, const std::string& body) {
    return sut.handle(patch(path, body)).status;
  };
  EXPECT_EQ(status("/v1/policy", R"({"rotation": {"alpha": -1}})"), 400);
  json classes = json::object();
  for (int i = 0; i < 50; ++i) classes["a" + std::to_string(i)] = json::object();
  EXPECT_EQ(status("/v1/slo", json{{"classes", classes}}.dump()), 200);
  classes = json::object();
  for (int i = 0; i < 50; ++i) classes["b" + std::to_string(i)] = json::object();
  EXPECT_EQ(status("/v1/slo", json{{"classes", classes}}.dump()), 409);
  EXPECT_EQ(status("/v1/slo", R"({"classes": {"a b": {}}})"), 400);
  EXPECT_EQ(status("/v1/slo", R"({"classes": {"default": null}})"), 400);
}

TEST_F(AdminServiceTest, TheConsoleIsFilesOfThisServerAlone) {
  const auto page = sut.handle(get("/"));
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.type, "text/html; charset=utf-8");
  std::size_t files = 0;
  for (const Resource& resource : resources()) {
    SCOPED_TRACE(resource.path);
    const auto answer = sut.handle(get(std::string(resource.path)));
    // The description is filled in (console/description.hpp).
    if (resource.path != "/openapi.json") {
      EXPECT_EQ(answer.body, resource.body);
    }
    EXPECT_EQ(answer.type, resource.type);
    // Looks for what the policy on content would block, and for what would break the policy.
    for (const char* foreign : {"https:", " style=", "<style", "onclick=", "innerHTML", "eval("}) {
      EXPECT_EQ(resource.body.find(foreign), std::string_view::npos) << foreign;
    }
    static const std::regex kUse(R"re((?:src|href)="(/[^"]*)"|from "\.(/[^"]*)")re");
    const std::string body(resource.body);
    for (std::sregex_iterator it(body.begin(), body.end(), kUse), end; it != end; ++it, ++files) {
      const std::string path = (*it)[1].matched ? (*it)[1].str() : "/console" + (*it)[2].str();
      EXPECT_NE(resource_at(path), nullptr) << path;
    }
  }
  EXPECT_GT(files, 15u);
  HttpRequest post = get("/");
  post.method = "POST";
  EXPECT_EQ(sut.handle(post).status, 405);
  EXPECT_EQ(sut.handle(post).allow, "GET");
}

TEST_F(AdminServiceTest, TheConsoleIsShownToWhoMayNotRead) {
  backend.edit([](Snapshot& s) { s.read = ReadPolicy::kToken; });
  EXPECT_EQ(sut.handle(get("/")).status, 200);
  EXPECT_EQ(sut.handle(get("/v1/overview")).status, 401);
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

TEST_F(AdminServiceTest, QuotasAreShownAndChanged) {
  const auto change = [&](const std::string& body) {
    return sut.handle(patch("/v1/quotas", R"({"domains": {)" + body + "}}"));
  };
  auto answer = change(R"("default": {"hbm": {"guarantee_bytes": 4194304}})");
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(json::parse(answer.body)["domains"]["default"], json::parse(R"({"per_user": false,
    "hbm": {"guarantee_bytes": 4194304, "maximum_bytes": null, "over_bytes": 0},
    "dram": {"guarantee_bytes": 0, "maximum_bytes": null, "over_bytes": 0}})"));
  const std::string etag = answer.etag;
  answer = change(R"("default": {"hbm": {"maximum_bytes": 8388608}})");
  EXPECT_EQ(json::parse(answer.body)["domains"]["default"]["hbm"]["maximum_bytes"], 8388608);
  EXPECT_NE(answer.etag, etag);
  HttpRequest late = patch("/v1/quotas", "{}");
  late.if_match = etag;
  EXPECT_EQ(sut.handle(late).status, 412);
  late.if_match = answer.etag;
  EXPECT_EQ(sut.handle(late).status, 200);
  answer = change(R"("default": {"hbm": {"maximum_bytes": null}})");
  EXPECT_TRUE(json::parse(answer.body)["domains"]["default"]["hbm"]["maximum_bytes"].is_null());
}

TEST_F(AdminServiceTest, QuotasThatCannotBeAreRefusedWithTheirPath) {
  struct Row {
    const char* body;
    int status;
    const char* path;
  };
  const Row kRows[] = {
      {R"({"domains": {"nobody": {"hbm": {"guarantee_bytes": 0}}}})", 404, "/domains"},
      {R"({"domains": {"default\u0000x": {"hbm": {"guarantee_bytes": 0}}}})", 404, "/domains"},
      {R"({"domains": {"default": {"hbm": {"guarantee_bytes": 99999999}}}})", 409, "/domains"},
      {R"({"domains": {"default": {"dram": {"guarantee_bytes": 5, "maximum_bytes": 4}}}})", 409,
       "/domains"},
      {R"({"domains": {"users": {"hbm": {"guarantee_bytes": 1}}}})", 409,
       "/domains/users/hbm/guarantee_bytes"},
      {R"({"domains": {"default": {"hbm": {"guarantee_bytes": -1}}}})", 400,
       "/domains/default/hbm/guarantee_bytes"},
      {R"({"domains": {"default": {"hbm": {"guarantee_bytes": null}}}})", 400,
       "/domains/default/hbm/guarantee_bytes"},
      {R"({"domains": {"default": {"hbm": {"maximum": 1}}}})", 400, "/domains/default/hbm/maximum"},
      {R"({"domains": {"default": {"per_user": true}}})", 400, "/domains/default/per_user"},
      {R"({"domains": null})", 400, "/domains"},
      {R"([])", 400, ""}};
  for (const Row& row : kRows) {
    SCOPED_TRACE(row.body);
    const auto answer = sut.handle(patch("/v1/quotas", row.body));
    EXPECT_EQ(answer.status, row.status) << answer.body;
    EXPECT_EQ(json::parse(answer.body)["path"], row.path);
  }
  EXPECT_EQ(backend.changes(), 0);
}

TEST_F(AdminServiceTest, EnginesAndTheNodeAreTakenOutOfServiceAndPutBack) {
  core::EngineStatus engine;
  engine.id = EngineId(3);
  engine.name = "a";
  backend.edit([&](Snapshot& s) { s.status.engines = {engine}; });
  const auto change = [&](const std::string& body) { return sut.handle(patch("/v1/drain", body)); };
  const auto before = sut.handle(get("/v1/drain"));
  EXPECT_EQ(json::parse(before.body), json::parse(R"({"node": null, "engines": {}})"));
  auto answer = change(R"({"engines": {"3": {"deadline_s": 1.5}}})");
  EXPECT_EQ(answer.status, 200) << answer.body;
  const json one = json::parse(answer.body)["engines"]["3"];
  EXPECT_EQ(one["state"], "draining");
  EXPECT_EQ(one["deadline_s"], 1.5);
  EXPECT_EQ(one["left"], 1);
  EXPECT_EQ(json::parse(sut.handle(get("/v1/engines")).body)["engines"][0]["state"], "draining");
  EXPECT_NE(answer.etag, before.etag);
  HttpRequest late = patch("/v1/drain", "{}");
  late.if_match = before.etag;
  EXPECT_EQ(sut.handle(late).status, 412);
  answer = change(R"({"node": {}, "engines": {"3": null}})");
  EXPECT_TRUE(json::parse(answer.body)["engines"].empty());
  EXPECT_TRUE(json::parse(answer.body)["node"]["deadline_s"].is_null());
  EXPECT_EQ(json::parse(sut.handle(get("/v1/status")).body)["drains"], true);
  backend.edit([](Snapshot& s) { s.now += std::chrono::seconds(9); });
  answer = change(R"({"node": {"deadline_s": 0}})");
  EXPECT_EQ(json::parse(answer.body)["node"]["state"], "late");
  backend.edit([](Snapshot& s) { s.status.drain->left = 0; });
  EXPECT_EQ(json::parse(sut.handle(get("/v1/drain")).body)["node"]["state"], "drained");
  EXPECT_TRUE(json::parse(sut.handle(get("/v1/drain")).body)["node"]["to_remote"].is_null());
  backend.edit([](Snapshot& s) { s.status.to_remote = core::RemoteWrites{7, 5, 1}; });
  const json node = json::parse(sut.handle(get("/v1/drain")).body)["node"];
  EXPECT_EQ(node["state"], "writing");
  EXPECT_EQ(node["to_remote"], json::parse(R"({"left": 7, "stored": 5, "lost": 1})"));
}

TEST_F(AdminServiceTest, DrainsThatCannotBeAreRefusedWithTheirPath) {
  struct Row {
    const char* body;
    int status;
    const char* path;
  };
  const Row kRows[] = {{R"({"engines": {"3": {}}})", 404, "/engines"},
                       {R"({"engines": {"0": {}}})", 404, "/engines"},
                       {R"({"engines": {"3x": {}}})", 404, "/engines"},
                       {R"({"engines": {"4294967296": null}})", 404, "/engines"},
                       {R"({"engines": null})", 400, "/engines"},
                       {R"({"node": true})", 400, "/node"},
                       {R"({"node": {"deadline_s": -1}})", 400, "/node/deadline_s"},
                       {R"({"node": {"deadline_s": 1e300}})", 400, "/node/deadline_s"},
                       {R"({"node": {"deadline": 1}})", 400, "/node/deadline"},
                       {R"({"node": {"to_remote": 1}})", 400, "/node/to_remote"},
                       {R"({"node": {"to_remote": true}})", 404, ""},
                       {R"({"engines": {"3": {"to_remote": true}}})", 400, "/engines/3/to_remote"},
                       {R"({"nodes": {}})", 400, "/nodes"},
                       {R"([])", 400, ""}};
  for (const Row& row : kRows) {
    SCOPED_TRACE(row.body);
    const auto answer = sut.handle(patch("/v1/drain", row.body));
    EXPECT_EQ(answer.status, row.status) << answer.body;
    EXPECT_EQ(json::parse(answer.body)["path"], row.path);
  }
  EXPECT_EQ(backend.changes(), 0);
}

TEST_F(AdminServiceTest, TheCacheIsEmptiedByWhoHasTheToken) {
  backend.edit([](Snapshot& s) { s.status.cached[1] = Bytes(8192); });
  HttpRequest clear{"DELETE", "/v1/cache", "", "", ""};
  EXPECT_EQ(sut.handle(clear).status, 401);
  EXPECT_EQ(json::parse(sut.handle(get("/v1/cache")).body)["cached_bytes"]["dram"], 8192);
  clear.authorization = std::string("Bearer ") + kToken;
  const auto answer = sut.handle(clear);
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(json::parse(answer.body)["cached_bytes"]["dram"], 0);
  clear.method = "PATCH";
  EXPECT_EQ(sut.handle(clear).allow, "GET, DELETE");
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
  EXPECT_EQ(backend.changes(), 0);
}

TEST_F(AdminServiceTest, ReadingMayNeedTheTokenToo) {
  HttpRequest with_token = get("/v1/status");
  with_token.authorization = std::string("Bearer ") + kToken;
  const auto expect_open = [&](bool open) {
    EXPECT_EQ(sut.handle(get("/v1/status")).status, open ? 200 : 401);
    EXPECT_EQ(sut.handle(get("/v1/slo")).status, open ? 200 : 401);
    EXPECT_EQ(sut.handle(get("/healthz")).status, 200);
    EXPECT_EQ(sut.handle(get("/readyz")).status, 200);
    EXPECT_EQ(sut.handle(with_token).status, 200);
  };
  backend.edit([](Snapshot& s) { s.read = ReadPolicy::kToken; });
  expect_open(false);
  backend.edit([](Snapshot& s) { s.read = ReadPolicy::kAuto, s.uid = 1000; });
  expect_open(true);
  core::EngineStatus engine;
  engine.uid = 1000;
  backend.edit([&](Snapshot& s) { s.status.engines = {engine, engine}; });
  expect_open(true);
  backend.edit([](Snapshot& s) { s.status.engines[1].uid = 1001; });
  expect_open(false);
  backend.edit([](Snapshot& s) { s.read = ReadPolicy::kOpen; });
  expect_open(true);
}

TEST_F(AdminServiceTest, IfMatchGuardsAgainstLostUpdates) {
  const std::string before = sut.handle(get("/v1/slo")).etag;
  HttpRequest request = patch("/v1/slo", R"({"classes": {"default": {"tbt_s": 0.05}}})");
  request.if_match = before;
  EXPECT_EQ(sut.handle(request).status, 200);
  EXPECT_EQ(sut.handle(request).status, 412);
  request.if_match = "\"1\", " + sut.handle(get("/v1/slo")).etag;
  EXPECT_EQ(sut.handle(request).status, 200);
  for (const char* none : {"x", "\"", "\"\"", "\"zz\"", "W/\"1\"", ","}) {
    request.if_match = none;
    EXPECT_EQ(sut.handle(request).status, 412) << none;
  }
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
  EXPECT_EQ(backend.changes(), 0);
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
  clients.reserve(kClients);
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
  const HttpResponse unready = sut.handle(get("/readyz"));
  EXPECT_EQ(unready.status, 503);
  EXPECT_THAT(unready.body, testing::HasSubstr("not ready: the sockets are gone"));
  EXPECT_EQ(sut.handle(get("/healthz")).status, 200);
}

}  // namespace
}  // namespace kvd::admin
