// A decision of a running Controller, made again by kvd-plan: kvdctl's snapshot piped into it.
#include "kvd/admin/snapshots.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kvd/admin/admin_server.hpp"
#include "kvd/ctl/snapshots.hpp"
#include "planner/baselines/all_policies.hpp"
#include "tests/support/controller_world.hpp"
#include "tests/support/free_port.hpp"
#include "tests/unit/kvd/admin/fake_backend.hpp"
#include "tests/unit/kvd/admin/http.hpp"

namespace kvd::ctl {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

struct Piped {
  int code = -1;
  std::vector<json> lines;
};

Piped run(const std::string& command) {
  Piped out;
  std::string text;
  std::FILE* pipe = ::popen(("exec </dev/null; " + command).c_str(), "r");
  char piece[4096];
  while (std::fgets(piece, sizeof piece, pipe) != nullptr) text += piece;
  const int status = ::pclose(pipe);
  out.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) out.lines.push_back(json::parse(line));
  return out;
}

// Two engines in one domain, more requests than fit, some of them run and some wait.
core::ControllerStatus busy(std::string_view rotation) {
  core::Controller::Config config = test::small_pool(2, 32);
  config.tuning.rotation.policy = rotation;
  config.tuning.admission.policy = "layerkv";
  config.tuning.placement.policy = "orbitflow";
  config.tuning.slo["default"].ttft = milliseconds(100);
  test::World world(config);
  const EngineId a = world.attach(test::small_model());
  const EngineId b = world.attach(test::small_model());
  for (std::uint64_t r = 1; r <= 3; ++r) {
    EXPECT_EQ(world.submit(a, r, 8, 12), ErrorCode::kOk);
    EXPECT_EQ(world.submit(b, r, 11, 20), ErrorCode::kOk);
  }
  for (int i = 0; i < 12; ++i) {
    for (const EngineId engine : {a, b}) {
      world.pass(milliseconds(7));
      world.run_and_step(engine);
    }
    world.finish_copies();
  }
  world.pass(milliseconds(300));
  return world.controller->status(world.now);
}

class Snapshots : public ::testing::TestWithParam<std::string_view> {
 protected:
  Snapshots() : status_(busy(GetParam())) {
    backend_.edit([this](admin::Snapshot& shown) { shown.status = status_; });
    config_.port = test::free_port();
    auto started = admin::AdminServer::start(config_, backend_);
    EXPECT_TRUE(started.ok());
    server_ = std::move(*started);
  }
  [[nodiscard]] Piped pipe(const std::string& kind) const {
    return run(std::string(KVDCTL_PATH) + " requests --snapshot " + kind +
               " --url http://127.0.0.1:" + std::to_string(config_.port) + " | " KVD_PLAN_PATH " " +
               kind + " --batch");
  }
  core::ControllerStatus status_;
  admin::FakeBackend backend_;
  admin::AdminServer::Config config_;
  std::unique_ptr<admin::AdminServer> server_;
};

std::vector<std::string> ids(const std::vector<std::uint32_t>& indices,
                             const core::RotationInput& input) {
  std::vector<std::string> out;
  for (const auto i : indices) {
    const RequestKey& key = input.requests[i];
    out.push_back(std::to_string(key.engine.value) + "/" + std::to_string(key.request.value));
  }
  return out;
}

TEST_P(Snapshots, RotationIsDecidedAsTheDaemonDoes) {
  ASSERT_EQ(status_.rotation_inputs.size(), 1u);
  const auto& input = status_.rotation_inputs[0];
  ASSERT_FALSE(input.requests.empty());
  const auto policy = planner::all_policies().rotation(GetParam()).value();
  const auto& expected = policy->decide(input.snapshot, input.now, input.config);
  const Piped plan = pipe("rotate");
  ASSERT_EQ(plan.code, 0) << plan.lines;
  ASSERT_EQ(plan.lines.size(), 1u);
  EXPECT_EQ(plan.lines[0]["contention"], expected.contention);
  EXPECT_EQ(plan.lines[0]["prioritized"], json(ids(expected.prioritized, input)));
  EXPECT_EQ(plan.lines[0]["preempted"], json(ids(expected.preempted, input)));
}

TEST_P(Snapshots, AdmissionAndPlacementToo) {
  const Piped admit = pipe("admit");
  ASSERT_EQ(admit.code, 0) << admit.lines;
  ASSERT_EQ(admit.lines.size(), status_.admission_inputs.size());
  for (std::size_t i = 0; i < admit.lines.size(); ++i) {
    const auto& input = status_.admission_inputs[i];
    const auto policy = planner::all_policies().admission("layerkv").value();
    EXPECT_EQ(admit.lines[i]["admit"].size(), policy->decide(input.snapshot)->admitted);
  }
  const Piped place = pipe("place");
  ASSERT_EQ(place.code, 0) << place.lines;
  ASSERT_EQ(place.lines.size(), status_.placement_inputs.size());
  for (const json& plan : place.lines) EXPECT_TRUE(plan.contains("feasible"));
}

INSTANTIATE_TEST_SUITE_P(Policies, Snapshots, ::testing::Values("unified", "lvf", "ltr"),
                         [](const auto& of) { return std::string(of.param); });

TEST(SnapshotLines, RefusesWhatIsNoSnapshot) {
  EXPECT_EQ(*snapshot_lines(R"({"snapshots":[{"a":1},{"b":2}]})"), "{\"a\":1}\n{\"b\":2}\n");
  EXPECT_EQ(*snapshot_lines(R"({"snapshots":[]})"), "");
  for (const char* bad : {"", "[]", "{}", R"({"snapshots":3})"}) {
    EXPECT_EQ(snapshot_lines(bad).error().code, ErrorCode::kInternal) << bad;
  }
}

TEST(SnapshotDocument, KnowsThreeKinds) {
  EXPECT_FALSE(admin::snapshot_document({}, "load"));
  EXPECT_TRUE(admin::snapshot_document({}, "place"));
}

}  // namespace
}  // namespace kvd::ctl
