#include "kvd/ctl/views.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "kvd/admin/advice/advice.hpp"
#include "kvd/admin/documents.hpp"
#include "kvd/ctl/choice.hpp"

namespace kvd::ctl {
namespace {
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

admin::DaemonInfo info() {
  admin::DaemonInfo out;
  out.version = "0.1.0";
  out.backend = "host";
  out.uptime = std::chrono::seconds(303);
  out.page_kinds = {"thp", "4k"};
  return out;
}

std::string rendered(View view, const std::string& document) {
  const auto text = render(view, document);
  EXPECT_TRUE(text.ok()) << text.error().to_string();
  return text.ok() ? *text : "";
}

std::string chosen_events(const Choice& choice) {
  const auto at = [](int s) { return TimePoint(std::chrono::seconds(s)); };
  const std::string document = admin::events_document({{1, at(10), "error", EngineId(2), "first"},
                                                       {2, at(50), "info", EngineId(2), "second"},
                                                       {3, at(55), "warning", EngineId(), "third"}},
                                                      at(60));
  const auto rows = chosen(document, choice);
  EXPECT_TRUE(rows.ok());
  std::string texts;
  const auto parsed = nlohmann::json::parse(*rows);
  for (const auto& row : parsed.at("events")) {
    texts += row.at("text").get<std::string>() + " ";
  }
  return texts;
}

TEST(Views, TheChosenEventsAlone) {
  EXPECT_EQ(chosen_events({}), "first second third ");
  EXPECT_EQ(chosen_events({.engine = 2}), "first second ");
  EXPECT_EQ(chosen_events({.engine = 0}), "third ") << "kvd's own";
  EXPECT_EQ(chosen_events({.level = "warning"}), "first third ");
  EXPECT_EQ(chosen_events({.since_s = 10}), "second third ");
  EXPECT_EQ(chosen_events({.engine = 2, .level = "info", .since_s = 10}), "second ");
  EXPECT_EQ(chosen("{", {}).error().code, ErrorCode::kInternal);
}

TEST(Views, ADocumentTellsOfItsEnginesAlone) {
  EXPECT_TRUE(tells_of(R"({"engines": [{"id": 3}]})", 3));
  EXPECT_FALSE(tells_of(R"({"engines": [{"id": 3}]})", 7));
  EXPECT_TRUE(tells_of(R"({"requests": [{"engine": 3}, {"engine": 7}]})", 7));
  EXPECT_FALSE(tells_of(R"({"events": []})", 7));
  EXPECT_FALSE(tells_of("{", 7));
}

TEST(Views, StatusOfADaemonAtWork) {
  core::ControllerStatus status;
  status.tiers[0].capacity = 256 * kMiB;
  status.counters.tbt.met = 3;
  status.counters.tbt.missed = 1;
  status.counters.copy_bytes[1] = std::uint64_t{3} * 1024 * 1024;
  const std::string sut = rendered(View::kStatus, admin::status_document(status, info()));
  EXPECT_THAT(sut, AllOf(HasSubstr("kvd 0.1.0, backend host, up 5m 03s"), HasSubstr("256 MiB"),
                         HasSubstr("unified (rotation)"), HasSubstr("ttft none yet"),
                         HasSubstr("tbt 75.0 % of 4"), HasSubstr("d2h 3 MiB in 0 copies")));
}

TEST(Views, StatusNamesTheGpuWhereThereIsOne) {
  EXPECT_THAT(rendered(View::kStatus, admin::status_document({}, info())), Not(HasSubstr("gpu")));
  admin::DaemonInfo on_gpu = info();
  on_gpu.gpu = {"NVIDIA H100", "c0c1c2c3-c4c5", 300 * kMiB};
  EXPECT_THAT(rendered(View::kStatus, admin::status_document({}, on_gpu)),
              HasSubstr("\ngpu NVIDIA H100, c0c1c2c3-c4c5, 300 MiB for the context at most\n"));
}

TEST(Views, SeveralDevicesHaveARowEach) {
  core::ControllerStatus status;
  status.devices.resize(1);
  status.devices[0].b_xfer = 5 * kMiB;
  EXPECT_THAT(rendered(View::kStatus, admin::status_document(status, info())),
              AllOf(Not(HasSubstr("DEVICE")), HasSubstr("budget 5 MiB a step")));
  status.devices.resize(2);
  status.devices[1].device = DeviceId(1);
  status.devices[1].hbm.free = 7 * kMiB;
  EXPECT_THAT(rendered(View::kStatus, admin::status_document(status, info())),
              AllOf(HasSubstr("DEVICE"), HasSubstr("7 MiB"), Not(HasSubstr("a step"))));
  status.engines.resize(1);
  status.engines[0].ranks = {2, {DeviceId(0), DeviceId(1)}};
  EXPECT_THAT(rendered(View::kEngines, admin::engines_document(status)),
              AllOf(HasSubstr("DEVICES"), HasSubstr("0 1")));
}

TEST(Views, PoolsInUnits) {
  core::ControllerStatus status;
  status.tiers[1].free = 1536 * kMiB;
  status.held[1] = 3 * kMiB;
  status.cached[1] = 512 * kMiB;
  status.orphaned = 64 * kMiB;
  EXPECT_THAT(rendered(View::kPools, admin::pools_document(status, info())),
              AllOf(ContainsRegex("REQUESTS +REGIONS +CACHED +FREE +AVAILABLE"),
                    ContainsRegex("dram .* 3 MiB +0 B +512 MiB +1.5 GiB +2 GiB"),
                    HasSubstr("orphaned: 64 MiB")));
}

TEST(Views, EngineNamesCannotSteerTheTerminal) {
  core::ControllerStatus status;
  EXPECT_EQ(rendered(View::kEngines, admin::engines_document(status)), "no engines attached\n");
  status.engines.resize(1);
  status.engines[0].name = "a\x1b[2Jb";
  status.engines[0].region = 64 * kMiB;
  EXPECT_THAT(rendered(View::kEngines, admin::engines_document(status)),
              AllOf(HasSubstr("a?[2Jb"), HasSubstr("64 MiB"), Not(HasSubstr("\x1b"))));
}

TEST(Views, RequestsWithStateAndLag) {
  core::ControllerStatus status;
  EXPECT_EQ(rendered(View::kRequests, admin::requests_document(status)), "no requests\n");
  status.requests.resize(1);
  status.requests[0].state = core::RequestState::kRotary;
  status.requests[0].vlt_s = -0.25;
  EXPECT_THAT(rendered(View::kRequests, admin::requests_document(status)),
              AllOf(HasSubstr("rotary"), HasSubstr("-250 ms")));
}

TEST(Views, RequestsSayWhyTheyWaitAndHowLateTheyAre) {
  core::ControllerStatus status;
  status.engines.resize(1);
  status.engines[0].service.classes.emplace_back().name = "chat";
  status.requests.resize(1);
  status.requests[0].goals = {0, false, 5, 0.1, 1, 7.7};
  status.requests[0].waits_for = WaitReason::kLate;
  const std::string document = admin::requests_document(status);
  EXPECT_THAT(rendered(View::kRequests, document),
              AllOf(HasSubstr("chat"), HasSubstr("ttft 5 s"), HasSubstr("7.7 s"),
                    HasSubstr("its goal has passed, and those that can")));
  nlohmann::json older = nlohmann::json::parse(document);
  for (const char* key : {"class", "awaits", "late_s", "waits_for"})
    older["requests"][0].erase(key);
  EXPECT_THAT(rendered(View::kRequests, older.dump()), HasSubstr("waiting"));
}

TEST(Views, TheCacheByTier) {
  core::ControllerStatus status;
  status.cached[0] = Bytes(1 << 20);
  status.counters.prefixes.asked = 100;
  status.counters.prefixes.found[1] = 48;
  status.tuning.load.policy = "always";
  status.cached[kTiers] = Bytes(2 << 20);
  status.retained = {Bytes(4 << 20), 1 << 20, 3 << 20};
  status.counters.prefixes.lower[core::kDiskTier].loads = 7;
  status.counters.prefixes.lower[core::kDiskTier].store_failures = 1;
  EXPECT_EQ(rendered(View::kCache, admin::cache_document(status)),
            "TIER  CACHED  EVICTED  TOKENS FOUND\n"
            "hbm    1 MiB      0 B             0\n"
            "dram     0 B      0 B            48\n"
            "retained: 4 MiB of DRAM; 1 MiB made way before their time; 3 MiB prefetched\n"
            "disk: 2 MiB cached; 7 blocks read, 0 could not be; 0 written, 1 could not be\n"
            "of 100 prompt tokens that engines told the content of; load.policy is always\n");
}

TEST(Views, WhatTheBlocksOfEachEngineAreOf) {
  core::ControllerStatus status;
  status.engines.resize(1);
  status.engines[0].id = EngineId(3);
  status.engines[0].name = "vllm";
  status.engines[0].domain = "chat";
  status.engines[0].kv.caches = {{"llama weights 12", Bytes(1 << 20), 16}, {"", Bytes(4096), 32}};
  EXPECT_THAT(rendered(View::kCache, admin::cache_document(status)),
              HasSubstr("ENGINE  NAME  DOMAIN       BLOCK  BLOCKS ARE OF\n"
                        "     3  vllm  chat    16 x 1 MiB  llama weights 12\n"
                        "     3  vllm  chat    32 x 4 KiB  -\n"));
}

TEST(Views, RemoteServersAndWhyTheyAreOff) {
  core::ControllerStatus status;
  EXPECT_THAT(rendered(View::kRemote, admin::remote_document(status)),
              HasSubstr("remote.servers names them"));
  status.remote_servers.resize(2);
  status.remote_servers[0].server = "cache-1:6379";
  status.remote_servers[0].on = true;
  status.remote_servers[0].loads = 7;
  status.remote_servers[1].server = "cache-2:6379";
  status.remote_servers[1].why = "cache-2:6379: no answer; start the server";
  EXPECT_THAT(rendered(View::kRemote, admin::remote_document(status)),
              AllOf(HasSubstr("cache-1:6379  on"), HasSubstr("cache-2:6379  off"),
                    HasSubstr("\ncache-2:6379: no answer; start the server\n")));
  status.counters.prefixes.lower[core::kRemoteTier].refused = 3;
  EXPECT_THAT(rendered(View::kRemote, admin::remote_document(status)),
              HasSubstr("3 blocks made way in DRAM before they were written: raise remote.budget"));
  EXPECT_THAT(rendered(View::kStatus, admin::status_document({}, info())),
              Not(HasSubstr("remote:")));
  status.counters.prefixes.lower[core::kRemoteTier].loads = 7;
  EXPECT_THAT(rendered(View::kStatus, admin::status_document(status, info())),
              HasSubstr("\nremote:   1 of 2 servers on; 7 blocks loaded, 0 stored"));
}

TEST(Views, AdviceByEngineAndTier) {
  core::ControllerStatus status;
  EXPECT_THAT(rendered(View::kAdvice, admin::advice_document(status)), HasSubstr("no engine"));
  status.devices.resize(1);
  status.devices[0].link_rate[0] = 1 << 30;
  status.counters.prefixes.prompts = 1;
  status.counters.prefixes.asked = 1000;
  status.counters.prefixes.found[1] = 500;
  status.engines.resize(1);
  status.engines[0].id = EngineId(3);
  status.engines[0].kv = {Bytes(1 << 20), 1e-2};
  const std::string shown = rendered(View::kAdvice, admin::advice_document(status));
  EXPECT_THAT(shown, HasSubstr("engine 3, dram: pays; 1 GiB/s after 0 s; from 1 tokens on; a mean "
                               "prompt loads in 977 ms, computes in 10 s\n"));
  EXPECT_THAT(shown, HasSubstr("engine 3, disk: not known yet\n"));
  EXPECT_THAT(shown, HasSubstr("the tier is faster than computing  yes"));
  EXPECT_THAT(shown, HasSubstr("1 prompts told their content so far"));
}

TEST(Views, PlansByEngine) {
  core::ControllerStatus status;
  EXPECT_EQ(rendered(View::kPlan, admin::plan_document(status)), "no layers may stream\n");
  core::PlanStatus plan;
  plan.engine = EngineId(3);
  plan.solving = true;
  status.plans = {plan};
  EXPECT_EQ(rendered(View::kPlan, admin::plan_document(status)),
            "engine 3: its first plan is being made\n");
  plan.number = 12;
  plan.policy = "orbitflow";
  plan.solving = false;
  plan.steps_left = 40;
  plan.step_s = 0.05;
  plan.stall_s = 0.01;
  plan.requests = {{RequestId(7), 2, {2, 4}, false}, {RequestId(18), 0, {}, true}};
  status.plans = {plan};
  EXPECT_EQ(rendered(View::kPlan, admin::plan_document(status)),
            "engine 3: orbitflow, plan 12, 40 steps left, a step 50 ms, 10 ms of it for layers\n"
            "REQUEST  DISTANCE  PAUSED  GROUPS IN DRAM\n"
            "      7  2         -       2 4\n"
            "     18  -         yes     -\n");
}

TEST(Views, PolicyKeysAsSetTakesThem) {
  EXPECT_THAT(rendered(View::kPolicy, admin::policy_document({})),
              AllOf(HasSubstr("rotation.policy    unified"), HasSubstr("rotation.alpha     3"),
                    HasSubstr("rotation.b_xfer    auto")));
}

TEST(Views, SloGoals) {
  EXPECT_EQ(rendered(View::kSlo, admin::slo_document({})),
            "CLASS    TTFT     TBT    TPOT  GAP\n"
            "default   5 s  100 ms  200 ms  auto\n");
}

TEST(Views, AnotherDocumentIsAnErrorThatNamesTheWayOut) {
  for (const char* document : {"", "[]", "{}", "3"}) {
    const auto sut = render(View::kSlo, document);
    ASSERT_FALSE(sut.ok()) << document;
    EXPECT_THAT(sut.error().message, HasSubstr("--json"));
  }
}

TEST(RefusalText, ShowsPathAndMessage) {
  EXPECT_EQ(refusal_text(admin::refusal_document({ErrorCode::kInvalidArgument, "/a/b", "wrong"})),
            "/a/b: wrong");
  EXPECT_EQ(refusal_text(admin::refusal_document({ErrorCode::kInternal, "", "broken"})), "broken");
  EXPECT_EQ(refusal_text("<html>"), "<html>");
}

TEST(Views, EventsByNumber) {
  EXPECT_EQ(rendered(View::kEvents, admin::events_document({}, TimePoint(0))), "no events\n");
  const TimePoint at = TimePoint(0) + std::chrono::seconds(5);
  EXPECT_THAT(rendered(View::kEvents,
                       admin::events_document({{41, at, "warning", EngineId(2), "engine 'a' died"}},
                                              at + std::chrono::seconds(3))),
              AllOf(HasSubstr("41"), HasSubstr("warning"), HasSubstr("engine 'a' died")));
}

}  // namespace
}  // namespace kvd::ctl
