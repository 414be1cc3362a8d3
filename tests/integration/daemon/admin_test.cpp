// The admin interface over the daemon in this process: a change is in force at the next step and
// stands in the metrics.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "kvd/admin/admin_server.hpp"
#include "kvd/daemon/metrics_mapping.hpp"
#include "kvd_client/client.hpp"
#include "metrics/exporter/exporter.hpp"
#include "tests/support/daemon_thread.hpp"
#include "tests/unit/kvd/admin/http.hpp"

namespace kvd::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

class DaemonAdmin : public testing::Test {
 protected:
  DaemonAdmin() {
    admin::AdminServer::Config config;
    config.port = port_;
    config.service.token = "0123456789abcdef";
    auto server = admin::AdminServer::start(config, daemon_.daemon());
    KVD_CHECK(server.ok(), "the admin server");
    server_ = std::move(*server);
  }

  std::string ask(const std::string& method, const std::string& path, const std::string& body) {
    return admin::http_exchange(
        port_, method + " " + path +
                   " HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
                   "Authorization: Bearer 0123456789abcdef\r\n"
                   "Content-Type: application/merge-patch+json\r\nContent-Length: " +
                   std::to_string(body.size()) + "\r\n\r\n" + body);
  }
  json document(const std::string& path) {
    const std::string answer = ask("GET", path, "");
    return json::parse(answer.substr(answer.find("\r\n\r\n") + 4));
  }
  void start_exporter() {
    auto exporter = metrics::Exporter::start(
        {"127.0.0.1", metrics_port_}, [this](std::vector<metrics::Sample>& out) {
          const auto shell = daemon_.daemon().shell(std::chrono::seconds(30));
          KVD_CHECK(shell.ok(), "the shell's counters");
          daemon::collect(daemon_.status(), *shell, daemon_.daemon().info(), out);
        });
    KVD_CHECK(exporter.ok(), "the exporter");
    exporter_ = std::move(*exporter);
  }
  /// Starts at first use, as its end takes 2 s.
  std::string metrics() {
    if (!exporter_) start_exporter();
    return admin::http_exchange(metrics_port_,
                                "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  }

  DaemonThread daemon_{[](daemon::Config& config) { config.hbm = 4 * kMiB; }};
  std::uint16_t port_ = admin::free_port();
  std::uint16_t metrics_port_ = admin::free_port();
  std::unique_ptr<admin::AdminServer> server_;
  std::unique_ptr<metrics::Exporter> exporter_;
};

TEST_F(DaemonAdmin, APatchedPolicyIsInForceAtTheNextStepAndInTheMetrics) {
  kvd_client::Options options;
  options.endpoint = daemon_.endpoint();
  options.shape = {4, 0, 0, 1024};
  auto client = kvd_client::Client::open(options);
  ASSERT_TRUE(client.ok());
  // Two requests of which only one fits: under lvf the late one pushes the other out.
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
  // Counted when its last block is out; what was copied ahead has made room before.
  EXPECT_TRUE(poll_until([&] { return document("/v1/status")["counters"]["rotations_out"] > 0; }));
}

TEST_F(DaemonAdmin, TheConfigurationShownIsTheOneInForce) {
  ASSERT_THAT(ask("PATCH", "/v1/policy", R"({"rotation":{"policy":"srtf"}})"), HasSubstr("200 OK"));
  EXPECT_EQ(document("/v1/config")["rotation.policy"], "srtf");
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

TEST_F(DaemonAdmin, ARefusedPatchChangesNothing) {
  const std::string before = ask("GET", "/v1/policy", "");
  EXPECT_THAT(ask("PATCH", "/v1/policy", R"({"rotation":{"policy":"nonesuch"}})"),
              testing::AllOf(HasSubstr("400"), HasSubstr("lvf"), HasSubstr("/rotation/policy")));
  EXPECT_THAT(ask("PATCH", "/v1/policy", R"({"rotation":{"alpha":-1}})"), HasSubstr("400"));
  EXPECT_EQ(daemon_.status().tuning.rotation.policy, "unified");
}

}  // namespace
}  // namespace kvd::test
