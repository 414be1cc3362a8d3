#include "kvd/admin/documents.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace kvd::admin {
namespace {
using nlohmann::json;

TEST(Documents, PolicyReadsAsDocumented) {
  core::Tuning tuning;
  EXPECT_EQ(json::parse(policy_document(tuning)), json::parse(R"({
    "rotation": {"policy": "unified", "alpha": 3.0, "beta_b": 0.0, "beta_f": 0.5, "b_xfer": "auto",
                 "eager": true, "overload": "goodput", "pacing": "engine"},
    "placement": {"policy": "none"},
    "admission": {"policy": "none"},
    "load": {"policy": "measured_crossover"}})"));
  tuning.rotation.b_xfer = kMiB;
  EXPECT_EQ(json::parse(policy_document(tuning))["rotation"]["b_xfer"], 1048576);
}

TEST(Documents, SloReadsAsDocumented) {
  EXPECT_EQ(json::parse(slo_document(core::Tuning{})), json::parse(R"({
    "classes": {"default": {"ttft_s": 5.0, "tbt_s": 0.1, "tpot_s": 0.2, "gap_s": "auto"}}})"));
}

TEST(Documents, GoalsReadAsTheyWereWritten) {
  core::Tuning tuning;
  tuning.slo["batch"].ttft = std::chrono::seconds(60);
  EXPECT_NE(slo_document(tuning).find("\"ttft_s\": 60.0,"), std::string::npos)
      << slo_document(tuning);
}

TEST(Documents, TheOverviewIsTheOthersInOneLine) {
  Snapshot s;
  s.now = TimePoint(std::chrono::seconds(7));
  s.status.engines.resize(1);
  s.status.engines[0].name = "two\n   lines";
  s.status.requests.resize(1);
  for (std::uint64_t i = 1; i <= 100; ++i) s.happenings.push_back({i, s.now, "info", {}, "x"});
  const std::string text = overview_document(s);
  EXPECT_EQ(text.find('\n'), text.size() - 1);
  const json sut = json::parse(text);
  EXPECT_EQ(sut["now_s"], 7.0);
  EXPECT_EQ(sut["status"], json::parse(status_document(s.status, s.info)));
  EXPECT_EQ(sut["pools"], json::parse(pools_document(s.status, s.info)));
  EXPECT_EQ(sut["engines"], json::parse(engines_document(s.status)));
  EXPECT_EQ(sut["engines"]["engines"][0]["name"], "two\n   lines");
  EXPECT_EQ(sut["requests"], json::parse(requests_document(s.status)));
  EXPECT_EQ(sut["plan"], json::parse(plan_document(s.status)));
  EXPECT_EQ(sut["cache"], json::parse(cache_document(s.status)));
  EXPECT_EQ(sut["events"]["events"].size(), 64u);
  EXPECT_EQ(sut["events"]["events"].back()["sequence"], 100);
}

TEST(Documents, TheHistoryTellsWhatTheCountersWere) {
  Snapshot s;
  s.info.boot_id = "b";
  History history(2);
  history[1].at = TimePoint(std::chrono::seconds(7));
  history[1].counters.tokens = 9;
  s.history = std::make_shared<const History>(history);
  const json sut = json::parse(history_document(s));
  EXPECT_EQ(sut["boot_id"], "b");
  ASSERT_EQ(sut["samples"].size(), 2u);
  EXPECT_EQ(sut["samples"][1]["now_s"], 7.0);
  EXPECT_EQ(sut["samples"][1]["counters"]["tokens"], 9);
}

TEST(Documents, RequestsTellTheirDeposit) {
  core::ControllerStatus status;
  status.requests.resize(2);
  status.requests[0].key = {EngineId(1), RequestId(4)};
  status.requests[1].key = {EngineId(1), RequestId(5)};
  core::RotationInput input;
  input.requests = {status.requests[1].key};
  input.snapshot.requests.resize(1);
  input.snapshot.requests[0].deposit = 12;
  status.rotation_inputs = {input};
  const json sut = json::parse(requests_document(status))["requests"];
  EXPECT_TRUE(sut[0]["deposit_tokens"].is_null());
  EXPECT_EQ(sut[1]["deposit_tokens"], 12);
}

TEST(Documents, SlabsTellTheirSlotsByStateAndWhoMapsThem) {
  core::ControllerStatus status;
  pool::SlabView slab;
  slab.by_state = {1, 0, 2, 3, 0, 0, 0};
  slab.mapped_by = {EngineId(8), EngineId(9)};
  slab.engines = 2;
  status.slabs[0] = {slab};
  const json sut = json::parse(pools_document(status, {}))["pools"][0]["slab_list"][0];
  EXPECT_EQ(sut["by_state"]["sealed"], 3);
  EXPECT_EQ(sut["by_state"]["free"], 1);
  EXPECT_EQ(sut["mapped_by"], json({8, 9}));
  EXPECT_EQ(sut["engines_mapping"], 2);
}

TEST(Documents, StatusOfAnEmptyDaemon) {
  DaemonInfo info;
  info.version = "1.2.3";
  info.page_kinds = {"thp", "4k"};
  const json sut = json::parse(status_document({}, info));
  EXPECT_EQ(sut["version"], "1.2.3");
  EXPECT_EQ(sut["engines"], 0);
  EXPECT_EQ(sut["requests"]["rotary"], 0);
  EXPECT_EQ(sut["pools"].size(), 2u);
  EXPECT_EQ(sut["pools"][1]["tier"], "dram");
  EXPECT_EQ(sut["pools"][1]["pages"], "4k");
  EXPECT_EQ(sut["counters"]["rotation_blocked"]["dram"], 0);
}

TEST(Documents, StatusCountsWhatLayersDo) {
  core::ControllerStatus status;
  status.counters.plans = 1;
  status.counters.pauses = 2;
  status.counters.streams = 3;
  status.counters.layers_fetched = 4;
  status.counters.layerwise = 5;
  EXPECT_EQ(json::parse(status_document(status, {}))["counters"]["layers"], json::parse(R"({
    "plans": 1, "pauses": 2, "iterations": 3, "blocks_fetched": 4, "layerwise_prefills": 5})"));
}

TEST(Documents, StatusCountsWhatMovedWithinDram) {
  core::ControllerStatus status;
  status.counters.compacted.blocks = 6;
  status.counters.compacted.bytes = 6144;
  EXPECT_EQ(json::parse(status_document(status, {}))["counters"]["compacted"],
            json::parse(R"({"blocks": 6, "bytes": 6144})"));
}

TEST(Documents, StatusNamesTheGpuWhereThereIsOne) {
  DaemonInfo info;
  EXPECT_TRUE(json::parse(status_document({}, info)).at("gpu").is_null());
  info.gpu = {"NVIDIA H100", "c0c1c2c3-c4c5-c6c7-c8c9-cacbcccdcecf", 500 * kMiB};
  EXPECT_EQ(json::parse(status_document({}, info))["gpu"], json::parse(R"({
    "name": "NVIDIA H100", "uuid": "c0c1c2c3-c4c5-c6c7-c8c9-cacbcccdcecf",
    "context_bytes": 524288000})"));
}

TEST(Documents, PoolsListSlabsByTier) {
  core::ControllerStatus status;
  status.slabs[1].resize(3);
  status.slabs[1][2].use = pool::SlabUse::kRegion;
  status.slabs[1][2].used = 7;
  status.tiers[1].capacity = 3 * kMiB;
  const json sut = json::parse(pools_document(status, {}));
  EXPECT_EQ(sut["pools"][0]["slab_list"].size(), 0u);
  EXPECT_EQ(sut["pools"][1]["slab_list"][2]["use"], "region");
  EXPECT_EQ(sut["pools"][1]["slab_list"][2]["used"], 7);
  EXPECT_EQ(sut["pools"][1]["capacity_bytes"], 3145728);
}

TEST(Documents, EngineNamesNeedNotBeUtf8) {
  core::ControllerStatus status;
  status.engines.resize(1);
  status.engines[0].name = "llama\xff\"\n";
  status.engines[0].responsive = false;
  const json sut = json::parse(engines_document(status));
  EXPECT_EQ(sut["engines"][0]["name"], "llama\xEF\xBF\xBD\"\n");
  EXPECT_EQ(sut["engines"][0]["state"], "unresponsive");
}

TEST(Documents, RequestsTellTheirPlaceAndLag) {
  core::ControllerStatus status;
  core::RequestStatus request;
  request.key = {EngineId(3), RequestId(44)};
  request.state = core::RequestState::kRotary;
  request.dram = kKiB;
  request.vlt_s = -0.25;
  status.requests = {request};
  const json sut = json::parse(requests_document(status))["requests"][0];
  EXPECT_EQ(sut["engine"], 3);
  EXPECT_EQ(sut["request"], 44);
  EXPECT_EQ(sut["state"], "rotary");
  EXPECT_EQ(sut["dram_bytes"], 1024);
  EXPECT_EQ(sut["vlt_s"], -0.25);
}

TEST(Documents, RequestsTellWhatTheyWaitForAndHowLateTheyAre) {
  core::ControllerStatus status;
  status.engines.resize(1);
  status.engines[0].id = EngineId(3);
  status.engines[0].service.classes.resize(2);
  status.engines[0].service.classes[0].name = "chat";
  status.engines[0].service.classes[1].name = core::kOwnGoals;
  status.engines[0].service.classes[0].ttft = {2, 1};
  status.engines[0].service.classes[0].oldest = {12.5, 2.5};
  core::RequestStatus late;
  late.key = {EngineId(3), RequestId(1)};
  late.goals = {0, false, 5, 0.1, 2, 7.5};
  late.waits_for = WaitReason::kBehind;
  core::RequestStatus runs;
  runs.key = {EngineId(3), RequestId(2)};
  runs.goals = {1, true, 5, 0.1, 2, std::nullopt};
  status.requests = {late, runs};
  const json requests = json::parse(requests_document(status))["requests"];
  EXPECT_EQ(requests[0]["class"], "chat");
  EXPECT_EQ(requests[0]["awaits"], "ttft");
  EXPECT_EQ(requests[0]["ttft_goal_s"], 5);
  EXPECT_EQ(requests[0]["gap_goal_s"], 2);
  EXPECT_EQ(requests[0]["late_s"], 7.5);
  EXPECT_EQ(requests[0]["waits_for"], "behind");
  for (const char* none : {"class", "awaits", "late_s", "waits_for"})
    EXPECT_TRUE(requests[1][none].is_null()) << none;
  EXPECT_EQ(json::parse(engines_document(status))["engines"][0]["classes"], json::parse(R"([
    {"class": "chat", "ttft": {"met": 2, "missed": 1}, "tbt": {"met": 0, "missed": 0},
     "oldest_wait_s": 12.5, "oldest_wait_goals": 2.5},
    {"class": null, "ttft": {"met": 0, "missed": 0}, "tbt": {"met": 0, "missed": 0},
     "oldest_wait_s": 0.0, "oldest_wait_goals": 0.0}])"));
}

TEST(Documents, PlansTellWhichLayersStream) {
  core::ControllerStatus status;
  EXPECT_EQ(json::parse(plan_document(status)), json::parse(R"({"plans": []})"));
  core::PlanStatus plan;
  plan.engine = EngineId(3);
  plan.number = 12;
  plan.policy = "batch_uniform";
  plan.fallback = true;
  plan.steps_left = 40;
  plan.step_s = 0.05;
  plan.stall_s = 0.01;
  plan.gap = 0.125;
  plan.requests = {{RequestId(7), 2, {2, 4}, false}, {RequestId(8), 0, {}, true}};
  status.plans = {plan};
  EXPECT_EQ(json::parse(plan_document(status)), json::parse(R"({"plans": [
    {"engine": 3, "number": 12, "policy": "batch_uniform", "fallback": true, "solving": false,
     "steps_left": 40, "step_s": 0.05, "stall_s": 0.01, "gap": 0.125, "layer_groups": 0,
     "requests": [{"request": 7, "distance": 2, "groups_in_dram": [2, 4], "paused": false},
                  {"request": 8, "distance": 0, "groups_in_dram": [], "paused": true}]}]})"));
}

TEST(Documents, RefusalsNameCodePathAndRemedy) {
  const json sut = json::parse(
      refusal_document({ErrorCode::kInvalidArgument, "/rotation/alpha", "must be a number"}));
  EXPECT_EQ(sut, json::parse(R"({"error": "InvalidArgument", "path": "/rotation/alpha",
                                 "message": "must be a number"})"));
}

TEST(Documents, EventsAreNumberedAndOnlyTheLastAreKept) {
  Journal journal;
  for (std::size_t i = 1; i <= Journal::kKept + 2; ++i) {
    journal.add(TimePoint(std::chrono::seconds(i)), "info", EngineId(7),
                "event " + std::to_string(i));
  }
  const auto kept = journal.all();
  ASSERT_EQ(kept.size(), Journal::kKept);
  const json events = json::parse(events_document(kept, kept.back().at + std::chrono::seconds(2)));
  EXPECT_EQ(events["events"].front()["sequence"], 3) << "1 and 2 made room";
  const json last = events["events"].back();
  EXPECT_EQ(last["sequence"], Journal::kKept + 2);
  EXPECT_EQ(last["age_s"], 2.0);
  EXPECT_EQ(last["engine"], 7);
  EXPECT_EQ(last["text"], "event " + std::to_string(Journal::kKept + 2));
}

TEST(Documents, PoolsSayWhatRetires) {
  core::ControllerStatus status;
  status.tiers[0].slabs_retiring = 2;
  status.slabs[0].resize(1);
  status.slabs[0][0].retiring = true;
  const json hbm = json::parse(pools_document(status, {}))["pools"][0];
  EXPECT_EQ(hbm["slabs_retiring"], 2);
  EXPECT_EQ(hbm["slab_list"][0]["retiring"], true);
}

}  // namespace
}  // namespace kvd::admin
