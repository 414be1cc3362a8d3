// The admin interface over the daemon in this process: a change is in force at the next step and
// stands in the metrics.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "kvd/admin/admin_server.hpp"
#include "kvd/admin/link_backend.hpp"
#include "kvd/admin/metrics_server.hpp"
#include "kvd/daemon/admin_desk.hpp"
#include "kvd_client/client.hpp"
#include "tests/support/daemon_thread.hpp"
#include "tests/support/free_port.hpp"
#include "tests/unit/kvd/admin/http.hpp"

namespace kvd::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kToken = "0123456789abcdef";

/// kvd's end of the link, on a thread of its own. kvd-admin's end is in this process as well.
class DeskThread {
 public:
  DeskThread(daemon::Daemon& daemon, UniqueFd end)
      : channel_(std::move(end)), desk_(daemon, clock_, kToken) {
    thread_ = std::thread([this] {
      while (desk_.serve(channel_).ok()) {
      }
    });
  }
  ~DeskThread() { thread_.join(); }

 private:
  SteadyClock clock_;
  admin::link::Channel channel_;
  daemon::AdminDesk desk_;
  std::thread thread_;
};

/// Lets something happen between a request's first look at the daemon and the change it makes.
class InterruptedBackend final : public admin::AdminBackend {
 public:
  explicit InterruptedBackend(admin::AdminBackend& inner) : inner_(inner) {}
  Result<std::shared_ptr<const admin::Snapshot>> snapshot() override { return inner_.snapshot(); }
  Result<admin::link::Standing> standing(std::string_view token) override {
    return inner_.standing(token);
  }
  Result<core::Tuning> change(std::string_view token, const admin::TuningPatch& patch) override {
    if (before_change) before_change();
    return inner_.change(token, patch);
  }
  Status clear_cache(std::string_view token) override { return inner_.clear_cache(token); }
  std::function<void()> before_change;

 private:
  admin::AdminBackend& inner_;
};

class DaemonAdmin : public testing::Test {
 protected:
  DaemonAdmin() {
    auto ends = admin::link::Channel::pair();
    KVD_CHECK(ends.ok(), "a socket pair");
    desk_ = std::make_unique<DeskThread>(daemon_.daemon(), std::move(ends->first));
    channel_.emplace(std::move(ends->second));
    link_ = std::make_unique<admin::LinkBackend>(*channel_, clock_, [] {});
    link_->open();
    backend_ = std::make_unique<InterruptedBackend>(*link_);
    auto server = admin::AdminServer::start({"127.0.0.1", port_}, *backend_);
    KVD_CHECK(server.ok(), "the admin server");
    server_ = std::move(*server);
    auto metrics = admin::MetricsServer::start("127.0.0.1", metrics_port_, *backend_);
    KVD_CHECK(metrics.ok(), "the metrics server");
    metrics_ = std::move(*metrics);
  }
  ~DaemonAdmin() override {
    server_.reset();
    metrics_.reset();
    channel_.reset();  // ends the desk
  }

  std::string ask(const std::string& method, const std::string& path, const std::string& body) {
    return admin::http_exchange(
        port_, method + " " + path +
                   " HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
                   "Authorization: Bearer " +
                   std::string(kToken) +
                   "\r\n"
                   "Content-Type: application/merge-patch+json\r\nContent-Length: " +
                   std::to_string(body.size()) + "\r\n\r\n" + body);
  }
  json document(const std::string& path) {
    const std::string answer = ask("GET", path, "");
    return json::parse(answer.substr(answer.find("\r\n\r\n") + 4));
  }
  std::string metrics() {
    return admin::http_exchange(metrics_port_, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
  }

  DaemonThread daemon_{[](daemon::Config& config) { config.hbm = 4 * kMiB; }};
  SteadyClock clock_;
  std::uint16_t port_ = free_port();
  std::uint16_t metrics_port_ = free_port();
  std::unique_ptr<DeskThread> desk_;
  std::optional<admin::link::Channel> channel_;
  std::unique_ptr<admin::LinkBackend> link_;
  std::unique_ptr<InterruptedBackend> backend_;
  std::unique_ptr<admin::AdminServer> server_;
  std::unique_ptr<admin::MetricsServer> metrics_;
};

TEST_F(DaemonAdmin, APatchedPolicyIsInForceAtTheNextStepAndInTheMetrics) {
  kvd_client::Options options;
  options.endpoint = daemon_.endpoint();
  options.shape = {4, 0, 0, 1024};
  auto client = kvd_client::Client::open(options);
  ASSERT_TRUE(client.ok());
  // Two requests of which only one fits. Under lvf the late one pushes the other out.
  for (const std::uint64_t id : {1u, 2u}) {
    ASSERT_TRUE(client->submit({id, 800, 100, std::chrono::milliseconds(1), {}}, kPatience).ok());
  }
  const std::string answer = ask("PATCH", "/v1/policy", R"({"rotation":{"policy":"fcfs"}})");
  EXPECT_THAT(answer, HasSubstr("200 OK"));
  EXPECT_THAT(answer, HasSubstr("ETag"));
  EXPECT_EQ(document("/v1/policy")["rotation"]["policy"], "fcfs");
  EXPECT_THAT(metrics(), HasSubstr(R"(kvd_policy_info{decision="rotation",policy="fcfs"} 1)"));
  EXPECT_THAT(metrics(), Not(HasSubstr(R"(policy="lvf"} 1)")));

  std::vector<kvd_client::StepReport> reports;
  std::uint64_t iteration = 0;
  for (int i = 0; i < 200; ++i) {
    const auto step = client->step(reports, iteration, 0, kPatience);
    ASSERT_TRUE(step.ok()) << step.error().message;
    reports.clear();
    iteration = step->iteration;
    for (const auto& run : step->run) {
      EXPECT_EQ(run.request, 1u) << "first come, first served";
      reports.push_back({run.request, run.tokens_present + run.tokens, false});
    }
  }
  EXPECT_EQ(document("/v1/status")["counters"]["rotations_out"], 0);

  // Back to lvf: the one that has waited long past its deadline gets its turn.
  ASSERT_THAT(ask("PATCH", "/v1/policy", R"({"rotation":{"policy":"lvf"}})"), HasSubstr("200 OK"));
  bool second_ran = false;
  EXPECT_TRUE(poll_until([&] {
    const auto step = client->step(reports, iteration, 0, kPatience);
    if (!step.ok()) return false;
    reports.clear();
    iteration = step->iteration;
    for (const auto& run : step->run) {
      second_ran |= run.request == 2;
      reports.push_back({run.request, run.tokens_present + run.tokens, false});
    }
    return second_ran;
  }));
  // A rotation counts when its last block is out. Blocks that were copied ahead have made room
  // before.
  EXPECT_TRUE(poll_until([&] { return document("/v1/status")["counters"]["rotations_out"] > 0; }));
}

TEST_F(DaemonAdmin, TheConfigurationShownIsTheOneInForce) {
  ASSERT_THAT(ask("PATCH", "/v1/policy", R"({"rotation":{"policy":"fcfs"}})"), HasSubstr("200 OK"));
  EXPECT_EQ(document("/v1/config")["rotation.policy"], "fcfs");
  ASSERT_THAT(ask("PATCH", "/v1/slo", R"({"classes":{"default":{"ttft_s":1.5}}})"),
              HasSubstr("200 OK"));
  EXPECT_EQ(document("/v1/config")["slo.default.ttft"], "1500ms");

  daemon::Config reloaded = daemon_.daemon().config();
  reloaded.domains[0].hbm_maximum = 2 * kMiB;
  reloaded.domains[0].dram_guarantee = 1000 * kGiB;  // more than there is: refused
  daemon_.daemon().reload(reloaded);
  EXPECT_TRUE(
      poll_until([&] { return document("/v1/config")["domain.default.hbm_maximum"] == "2MiB"; }));
  EXPECT_EQ(document("/v1/config")["domain.default.dram_guarantee"], "0B");
}

TEST_F(DaemonAdmin, PatchedSlosStandInTheMetrics) {
  ASSERT_THAT(ask("PATCH", "/v1/slo", R"({"classes":{"default":{"ttft_s":1.5,"tbt_s":0.25}}})"),
              HasSubstr("200 OK"));
  EXPECT_THAT(metrics(), HasSubstr(R"(goal="ttft"} 1.5)"));
  EXPECT_EQ(daemon_.status().tuning.slo.at("default").tbt, std::chrono::milliseconds(250));
}

// Either takes only what it says: a change of one is not undone by the other.
TEST_F(DaemonAdmin, ASighupBetweenAQuestionAndItsChangeIsNotUndone) {
  backend_->before_change = [&] {
    daemon::Config reloaded = daemon_.daemon().config();
    reloaded.tuning.slo["default"].ttft = std::chrono::milliseconds(750);
    daemon_.daemon().reload(std::move(reloaded));
  };
  ASSERT_THAT(ask("PATCH", "/v1/policy", R"({"rotation":{"alpha":7}})"), HasSubstr("200 OK"));
  EXPECT_EQ(document("/v1/policy")["rotation"]["alpha"], 7);
  EXPECT_EQ(document("/v1/slo")["classes"]["default"]["ttft_s"], 0.75);
  backend_->before_change = nullptr;
  ASSERT_THAT(ask("PATCH", "/v1/slo", R"({"classes":{"default":{"tbt_s":0.5}}})"),
              HasSubstr("200 OK"));
  EXPECT_EQ(document("/v1/slo")["classes"]["default"]["ttft_s"], 0.75);
}

TEST_F(DaemonAdmin, AChangeNeedsTheTokenEvenWhereItsBearerWasBelieved) {
  const auto refused = link_->change("0123456789abcdeF", {});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kPermissionDenied);
}

// kvd waits for another message first.
TEST_F(DaemonAdmin, NothingIsAskedBeforeTheLinkIsOpen) {
  auto ends = admin::link::Channel::pair();
  ASSERT_TRUE(ends.ok());
  admin::link::Channel quiet(std::move(ends->first)), other(std::move(ends->second));
  admin::LinkBackend sut(quiet, clock_, [] {});
  EXPECT_EQ(sut.standing("").error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(other.receive(kKiB, std::chrono::milliseconds(1)).error().code,
            ErrorCode::kDeadlineExceeded);
}

TEST_F(DaemonAdmin, ADaemonThatDrainsIsNotReady) {
  EXPECT_THAT(ask("GET", "/readyz", ""), HasSubstr("200 OK"));
  daemon_.daemon().stop();
  // What was seen within the last tenth of a second is shown again, so the two need not agree yet.
  for (const char* path : {"/readyz", "/v1/engines"}) {
    EXPECT_TRUE(poll_until([&] { return ask("GET", path, "").find("503") != std::string::npos; }))
        << path;
  }
}

TEST_F(DaemonAdmin, ARefusedPatchChangesNothing) {
  const std::string before = ask("GET", "/v1/policy", "");
  EXPECT_THAT(ask("PATCH", "/v1/policy", R"({"rotation":{"policy":"nonesuch"}})"),
              testing::AllOf(HasSubstr("400"), HasSubstr("lvf"), HasSubstr("/rotation/policy")));
  EXPECT_THAT(ask("PATCH", "/v1/policy", R"({"rotation":{"alpha":-1}})"), HasSubstr("400"));
  EXPECT_EQ(daemon_.status().tuning.rotation.policy, "unified");
}

}  // namespace
}  // namespace kvd::test
