#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <sstream>

#include "planner/tool/command_line.hpp"
#include "planner/tool/decisions.hpp"

namespace kvd::planner {
namespace {

using ::testing::HasSubstr;

struct Run {
  int status;
  std::string out, err;
};

Run run(std::vector<std::string_view> arguments, const std::string& in) {
  std::istringstream input(in);
  std::ostringstream out, err;
  const int status = run_kvd_plan(arguments, input, out, err);
  return {status, out.str(), err.str()};
}

// Equal but for numbers, which hold to 1e-9.
void expect_like(const Json& actual, const Json& expected, const std::string& where) {
  if (expected.is_number() && actual.is_number()) {
    EXPECT_NEAR(actual.get<double>(), expected.get<double>(), 1e-9) << where;
  } else if (expected.is_object() && actual.is_object()) {
    EXPECT_EQ(actual.size(), expected.size()) << where;
    for (const auto& [key, value] : expected.items()) {
      ASSERT_TRUE(actual.contains(key)) << where << "." << key;
      expect_like(actual[key], value, std::string(where).append(".").append(key));
    }
  } else if (expected.is_array() && actual.is_array()) {
    ASSERT_EQ(actual.size(), expected.size()) << where;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      expect_like(actual[i], expected[i], where + "[" + std::to_string(i) + "]");
    }
  } else {
    EXPECT_EQ(actual, expected) << where;
  }
}

Json answer(std::string_view decision, const std::string& in) {
  const auto ran = run({decision}, in);
  EXPECT_EQ(ran.status, 0) << ran.err;
  return ran.out.empty() ? Json() : Json::parse(ran.out);
}

constexpr const char* kLatency =
    R"({"layers":9,"compute_s":1.0,"link_blocks_per_s":3.0,"requests":[{"id":"r1","blocks":4,"offloaded":[4,8]},{"id":"r2","blocks":6,"offloaded":[3,6,9]}]})";
constexpr const char* kPlace =
    R"({"layers":9,"compute_s":1.0,"link_blocks_per_s":3.0,"capacity_blocks":70,"buffer":"strict","candidates":"dl","budget_ms":50,"tolerance":0,"requests":[{"id":"r1","blocks":3},{"id":"r2","blocks":6}]})";
constexpr const char* kRotate =
    R"({"policy":"lvf","now_s":10.0,"alpha":3,"beta_b":0,"beta_f":0.5,"s_b_s":0.1,"s_f_s":5,"b_hbm":2,"b_xfer":4,"requests":[{"id":"S1","state":"rotary","blocks":2,"t_last_s":9.0},{"id":"W1","state":"waiting","blocks":3,"t_arr_s":6.0},{"id":"R2","state":"running","blocks":2,"t_run_s":9.0},{"id":"R1","state":"running","blocks":4,"t_run_s":5.0}]})";
constexpr const char* kAdmit =
    R"({"policy":"layerkv","layers":32,"alpha":1.0,"beta":1.0,"flops_per_s":1.0e14,"link_bytes_per_s":2.0e10,"params":8.0e9,"hidden":4096,"kv_heads":8,"head_dim":128,"precision_bytes":2,"decoding":[{"id":"d1","tpot_slo_s":0.2,"n_past":100,"t_past_s":24.0,"n_future":50,"tpot_s":0.1}],"queue":[{"id":"q1","tokens":4096},{"id":"q2","tokens":16384}]})";
constexpr const char* kDeposit = R"({"slo_s":2,"generated_gaps_s":[1,1,1,1,4,1]})";
constexpr const char* kLoad =
    R"({"tokens":8192,"bytes":1073741824,"tier":{"bandwidth_bytes_per_s":1.0e9,"latency_s":0.001},"prefill":{"fixed_s":0.0,"per_token_s":0.0001,"per_token2_s":0.0}})";

TEST(KvdPlanExample, Latency) {
  expect_like(
      answer("latency", kLatency),
      Json::parse(
          R"({"latency_s":9.666666666666666,"compute_total_s":9.0,"stall_s":0.6666666666666666,"stalls_s":[0,0,0,0.3333333333333333,0,0,0,0,0.3333333333333333],"resident_blocks":64,"buffer_eq1_blocks":6,"buffer_strict_blocks":10,"fetched_blocks":26})"),
      "latency");
}

TEST(KvdPlanExample, Place) {
  auto actual = answer("place", kPlace);
  EXPECT_GE(actual["solve_ms"].get<double>(), 0);
  EXPECT_GE(actual["nodes"].get<int>(), 0);
  actual.erase("solve_ms");
  actual.erase("nodes");
  expect_like(
      actual,
      Json::parse(
          R"({"feasible":true,"distances":{"r1":"none","r2":3},"latency_s":9.0,"lower_bound_s":9.0,"gap":0.0,"stalls_s":[0,0,0,0,0,0,0,0,0],"resident_blocks":63,"buffer_blocks":6,"fetched_blocks":18,"expires_in":1000,"violations_per_step":0})"),
      "place");
}

TEST(KvdPlanExample, Rotate) {
  expect_like(
      answer("rotate", kRotate),
      Json::parse(
          R"({"prioritized":["S1","W1"],"preempted":["R1"],"vlt_s":{"S1":3.0,"W1":1.5,"R2":-1.0,"R1":-5.0},"contention":true,"b_left":1,"b_swap":3})"),
      "rotate");
}

TEST(KvdPlanExample, Admit) {
  expect_like(
      answer("admit", kAdmit),
      Json::parse(
          R"({"admit":["q1"],"allow_prefill_s":1.0,"prefill_s":{"q1":0.65673438953472,"q2":2.64343023255552},"retained_layers":{"q1":0,"q2":0},"offload_s":{"q1":0.0268435456,"q2":0.1073741824}})"),
      "admit");
}

TEST(KvdPlanExample, Deposit) {
  expect_like(answer("deposit", kDeposit),
              Json::parse(R"({"violations":0,"left":2,"delivered_gaps_s":[2,2,2,2,1,0]})"),
              "deposit");
}

TEST(KvdPlanExample, Load) {
  expect_like(
      answer("load", kLoad),
      Json::parse(
          R"({"decision":"recompute","load_tokens":0,"load_s":1.074741824,"prefill_s":0.8192,"crossover_tokens":null})"),
      "load");
}

Json with(const char* snapshot, const std::string& path, const Json& value) {
  auto json = Json::parse(snapshot);
  json[Json::json_pointer(path)] = value;
  return json;
}

TEST(KvdPlanLatency, ComputePerLayerSharingAndFixedCost) {
  auto per_layer = with(kLatency, "/compute_s", Json(std::vector<double>(9, 1.0)));
  EXPECT_EQ(answer("latency", per_layer.dump()), answer("latency", kLatency));
  const auto even = answer("latency", with(kLatency, "/sharing", "even").dump());
  EXPECT_NEAR(even["latency_s"].get<double>(), 9 + 7.0 / 3, 1e-9);
  const auto fixed = answer("latency", with(kLatency, "/transfer_s", 0.5).dump());
  EXPECT_GT(fixed["latency_s"].get<double>(), 9.67);
}

TEST(KvdPlanPlace, InfeasibleIsAnAnswer) {
  const auto memory = answer("place", with(kPlace, "/capacity_blocks", 8).dump());
  EXPECT_EQ(memory,
            Json::parse(R"({"feasible":false,"reason":"memory","proved":true,"victim":"r2"})"));
  auto late = with(kPlace, "/requests/0/slo_s", 8);
  late["requests"][1]["slo_s"] = 8;
  late["requests"][0]["deposit"] = 40;
  late["alpha"] = 0.5;
  EXPECT_EQ(answer("place", late.dump())["reason"], "slo");
  EXPECT_EQ(answer("place", late.dump())["victim"], "r1") << "27 + 40 against 54";
  late["requests"].erase(1);
  late["alpha"] = 0;
  late["requests"][0]["deposit"] = 0;
  EXPECT_EQ(answer("place", late.dump())["victim"], nullptr);
}

TEST(KvdPlanPlace, TheCurrentPlanDecidesTies) {
  auto tie = Json::parse(kPlace);
  tie["requests"][0]["blocks"] = 6;
  tie["capacity_blocks"] = 100;
  for (const std::string keeps : {"r1", "r2"}) {
    auto current = tie;
    current["requests"][0]["current"] = keeps == "r1" ? Json(3) : Json("none");
    current["requests"][1]["current"] =
        keeps == "r2" ? Json({{"layers", {3, 6, 9}}}) : Json("none");
    const auto distances = answer("place", current.dump())["distances"];
    EXPECT_EQ(distances[keeps], 3) << distances;
    EXPECT_EQ(distances[keeps == "r1" ? "r2" : "r1"], "none");
  }
}

TEST(KvdPlanPlace, EvenSetDistancesAreLists) {
  auto even = with(kPlace, "/candidates", "dl_even");
  even["requests"][0]["blocks"] = 4;
  const auto json = answer("place", even.dump());
  EXPECT_NEAR(json["latency_s"].get<double>(), 9 + 8.0 / 3, 1e-9);
  EXPECT_EQ(json["distances"]["r1"], Json({{"layers", {1, 3, 5, 7, 9}}}));
}

TEST(KvdPlanPlace, NodesAloneMakeAPureFunction) {
  auto nodes = Json::parse(kPlace);
  nodes.erase("budget_ms");
  nodes["budget_nodes"] = 3;
  auto once = answer("place", nodes.dump());
  auto twice = answer("place", nodes.dump());
  once.erase("solve_ms");
  twice.erase("solve_ms");
  EXPECT_EQ(once, twice);
}

TEST(KvdPlanPlace, EveryBaselineAnswers) {
  for (const auto* policy : {"none", "deepspeed", "flexgen", "flexgen_plus", "dynamic_heuristic",
                             "slo_aware", "batch_uniform"}) {
    const auto json = answer("place", with(kPlace, "/policy", policy).dump());
    EXPECT_TRUE(json.contains("feasible")) << policy;
  }
}

TEST(KvdPlanRotate, UnifiedTakesDeposits) {
  auto unified = with(kRotate, "/policy", "unified");
  EXPECT_EQ(answer("rotate", unified.dump())["preempted"], Json::array());
  unified["requests"][3]["deposit"] = 8;
  const auto json = answer("rotate", unified.dump());
  EXPECT_EQ(json["preempted"], Json({"R1"}));
  EXPECT_EQ(json["prioritized"], Json({"W1"}));
  unified["requests"][3]["made_token"] = false;
  EXPECT_EQ(answer("rotate", unified.dump())["preempted"], Json::array());
}

TEST(KvdPlanRotate, UnifiedTakesLongestGaps) {
  auto unified = with(kRotate, "/policy", "unified");
  unified["requests"][3]["deposit"] = 8;
  unified["requests"][3]["gap_s"] = 1;
  unified["requests"][3]["t_last_s"] = 10;
  EXPECT_EQ(answer("rotate", unified.dump())["preempted"], Json({"R1"}));
  unified["requests"][3]["t_last_s"] = 9.2;
  EXPECT_EQ(answer("rotate", unified.dump())["preempted"], Json::array()) << "due back at once";
  unified["tokens_per_s"] = -1;
  EXPECT_NE(run({"rotate"}, unified.dump()).status, 0);
}

TEST(KvdPlanRotate, PoliciesByLengthTakeLengths) {
  auto lengths = with(kRotate, "/policy", "ltr");
  lengths["requests"][1]["output_tokens"] = 10;
  lengths["requests"][3]["output_tokens"] = 20;
  const auto json = answer("rotate", lengths.dump());
  EXPECT_EQ(json["prioritized"], Json({"W1"})) << "S1's length is not known";
  EXPECT_EQ(json["preempted"], Json({"R2"})) << "nor is R2's: it counts as the longest";
  lengths["policy"] = "srtf";
  lengths["requests"][0]["output_tokens"] = 90;
  lengths["requests"][0]["tokens_made"] = 89;
  EXPECT_EQ(answer("rotate", lengths.dump())["prioritized"], Json({"S1"}));
}

TEST(KvdPlanRotate, TheDramGateIsForRequestsThatHoldNothingThere) {
  const Json parked = {{"id", "S1"}, {"state", "rotary"}, {"blocks", 2}, {"t_arr_s", 9.0}};
  auto full = with(kRotate, "/requests/0", parked);
  full["dram_total_blocks"] = 100;
  full["dram_free_blocks"] = 6;
  for (const auto* policy : {"lvf", "unified", "si_code", "srtf"}) {
    full["policy"] = policy;
    EXPECT_EQ(answer("rotate", full.dump())["prioritized"], Json({"S1"})) << policy;
  }
}

TEST(KvdPlanRotate, NobodyIsAnEmptyDecision) {
  const auto json = answer("rotate", with(kRotate, "/requests", Json::array()).dump());
  EXPECT_EQ(json["prioritized"], Json::array());
  EXPECT_EQ(json["vlt_s"], Json::object());
  EXPECT_EQ(json["b_left"], nullptr);
}

TEST(KvdPlanAdmit, ASlowLinkRetainsLayersAndHopelessDecodersCountOnlyLiterally) {
  const auto slow = answer("admit", with(kAdmit, "/link_bytes_per_s", 5.0e8).dump());
  EXPECT_EQ(slow["retained_layers"], Json({{"q1", 13}, {"q2", 13}}));
  auto hopeless = with(kAdmit, "/decoding/0/t_past_s", 100.0);
  EXPECT_EQ(answer("admit", hopeless.dump())["allow_prefill_s"], nullptr);
  EXPECT_EQ(answer("admit", hopeless.dump())["admit"].size(), 2u);
  hopeless["policy"] = "layerkv_literal";
  EXPECT_EQ(answer("admit", hopeless.dump())["admit"].size(), 0u);
}

TEST(KvdPlanAdmit, EveryPolicyAnswersWithMemoryAndGuard) {
  auto full =
      with(kAdmit, "/memory", Json::parse(R"({"total_blocks":200000,"free_blocks":14000})"));
  full["guard"] = Json::parse(R"({"step_s":0.05,"step_per_request_s":0.001,"tbt_slo_s":0.1})");
  for (const auto* policy :
       {"layerkv", "layerkv_literal", "whole_request", "past_future", "none"}) {
    full["policy"] = policy;
    EXPECT_TRUE(answer("admit", full.dump()).contains("admit")) << policy;
  }
  full["policy"] = "layerkv";
  full["queue"][0]["output_tokens"] = 100;
  const auto json = answer("admit", full.dump());
  EXPECT_EQ(json["chunk_tokens"], 249) << "0.04 s by eq. 3";
  EXPECT_EQ(json["forecast_blocks"].size(), 5u);
  EXPECT_EQ(json["forecast_blocks"][0], 14000 - 256) << "a layer of q1 while it is computed";
  EXPECT_EQ(json["offload_layers"], Json({{"d1", 0}}));
}

TEST(KvdPlanRotate, OverloadChoosesWhomUnifiedServes) {
  auto unified = with(kRotate, "/policy", "unified");
  unified["b_hbm"] = 3;
  unified["s_f_s"] = 3;
  unified["requests"].erase(0);
  unified["requests"].push_back(
      {{"id", "W2"}, {"state", "waiting"}, {"blocks", 3}, {"t_arr_s", 9.0}});
  EXPECT_EQ(answer("rotate", unified.dump())["prioritized"], Json({"W1"}));
  unified["overload"] = "goodput";
  EXPECT_EQ(answer("rotate", unified.dump())["prioritized"], Json({"W2"}));
}

TEST(KvdPlanDeposit, UnfinishedKeepsItsTokens) {
  const auto json = answer("deposit", with(kDeposit, "/finished", false).dump());
  EXPECT_EQ(json["left"], 2);
  EXPECT_EQ(json["delivered_gaps_s"].size(), 4u);
}

struct Bad {
  const char* decision;
  const char* snapshot;
  const char* path;
  const char* value;  // JSON
  const char* named;  // in the message
};

// The default prints addresses, which vary.
void PrintTo(const Bad& bad, std::ostream* out) { *out << bad.decision << " " << bad.path; }

std::string name_of(const ::testing::TestParamInfo<Bad>& of) {
  std::string name = std::string(of.param.decision) + of.param.path;
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name + "_" + std::to_string(of.index);
}

class KvdPlanRefuses : public ::testing::TestWithParam<Bad> {};

TEST_P(KvdPlanRefuses, WithTheKey) {
  const auto& bad = GetParam();
  const auto ran = run({bad.decision}, with(bad.snapshot, bad.path, Json::parse(bad.value)).dump());
  EXPECT_EQ(ran.status, 2);
  EXPECT_EQ(ran.out, "");
  const auto error = Json::parse(ran.err);
  EXPECT_EQ(error["error"], "InvalidArgument");
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(bad.named));
}

INSTANTIATE_TEST_SUITE_P(
    Inputs, KvdPlanRefuses,
    ::testing::Values(
        Bad{"latency", kLatency, "/layerz", "9", "layerz"},
        Bad{"latency", kLatency, "/layers", "0", "layers"},
        Bad{"latency", kLatency, "/layers", "1025", "layers"},
        Bad{"latency", kLatency, "/layers", "9.5", "layers"},
        Bad{"latency", kLatency, "/compute_s", "0", "compute_s"},
        Bad{"latency", kLatency, "/compute_s", "[1,1]", "compute_s"},
        Bad{"latency", kLatency, "/compute_s", "null", "compute_s"},
        Bad{"latency", kLatency, "/link_blocks_per_s", "-3", "link_blocks_per_s"},
        Bad{"latency", kLatency, "/transfer_s", "-1", "transfer_s"},
        Bad{"latency", kLatency, "/sharing", "\"fair\"", "sharing"},
        Bad{"latency", kLatency, "/requests", "[]", "requests"},
        Bad{"latency", kLatency, "/requests/0/blocks", "-1", "requests[0].blocks"},
        Bad{"latency", kLatency, "/requests/0/offloaded", "[4,4]", "requests[0].offloaded"},
        Bad{"latency", kLatency, "/requests/0/offloaded", "[10]", "requests[0].offloaded"},
        Bad{"latency", kLatency, "/requests/1/id", "\"r1\"", "r1"},
        Bad{"latency", kLatency, "/requests/1/size", "1", "requests[1].size"},
        Bad{"place", kPlace, "/requests", "[]", "requests"},
        Bad{"place", kPlace, "/capacity_blocks", "\"many\"", "capacity_blocks"},
        Bad{"place", kPlace, "/policy", "\"best\"", "orbitflow"},
        Bad{"place", kPlace, "/window", "{\"min\":9,\"max\":3}", "window"},
        Bad{"place", kPlace, "/requests/0/slo_s", "0", "slo_s"},
        Bad{"place", kPlace, "/requests/0/current", "10", "current"},
        Bad{"place", kPlace, "/requests/0/deposit", "-1", "deposit"},
        Bad{"place", kPlace, "/budget_ms", "-1", "budget_ms"},
        Bad{"rotate", kRotate, "/policy", "\"lru\"", "lvf"},
        Bad{"rotate", kRotate, "/alpha", "-1", "alpha"},
        Bad{"rotate", kRotate, "/requests/0/state", "\"idle\"", "state"},
        Bad{"rotate", kRotate, "/requests/0", R"({"id":"x","state":"running","blocks":1})",
            "t_run_s"},
        Bad{"rotate", kRotate, "/dram_total_blocks", "9", "dram_free_blocks"},
        Bad{"admit", kAdmit, "/flops_per_s", "0", "flops_per_s"},
        Bad{"admit", kAdmit, "/queue/0/tokens", "0", "tokens"},
        Bad{"admit", kAdmit, "/decoding/0/n_future", "0", "n_future"},
        Bad{"admit", kAdmit, "/policy", "\"fair\"", "past_future"},
        Bad{"admit", kAdmit, "/memory", "{\"total_blocks\":9}", "memory.free_blocks"},
        Bad{"admit", kAdmit, "/memory", R"({"total_blocks":9,"free_blocks":9})", "queue[0]"},
        Bad{"admit", kAdmit, "/guard", "{}", "guard.step_s"},
        Bad{"admit", kAdmit, "/link_busy", "1", "link_busy"},
        Bad{"rotate", kRotate, "/overload", "\"both\"", "goodput"},
        Bad{"deposit", kDeposit, "/slo_s", "0", "slo_s"},
        Bad{"deposit", kDeposit, "/generated_gaps_s/2", "-1", "generated_gaps_s"},
        Bad{"latency", kLatency, "/link_blocks_per_s", "1e-300", "link rate"},
        Bad{"latency", kLatency, "/compute_s", "1e300", "compute time"},
        Bad{"place", kPlace, "/requests/0/blocks", "2000000000000", "2^40"},
        Bad{"rotate", kRotate, "/requests/0/t_last_s", "-1e308", "lag"},
        Bad{"admit", kAdmit, "/params", "1e308", "range"},
        Bad{"deposit", kDeposit, "/generated_gaps_s", "[1e308,1e308]", "sum"},
        Bad{"load", kLoad, "/tier/bandwidth_bytes_per_s", "1e-308", "range"},
        Bad{"admit", kAdmit, "/guard", R"({"step_s":0.1,"turns":0})", "guard.turns"},
        Bad{"load", kLoad, "/tokens", "0", "tokens"},
        Bad{"load", kLoad, "/tier/bandwidth_bytes_per_s", "0", "tier.bandwidth_bytes_per_s"},
        Bad{"load", kLoad, "/tier", "7", "tier"}),
    name_of);

TEST(KvdPlan, NotJsonAndNumbersBeyondDoubleAreRefused) {
  for (const auto* text : {"", "{", "[1]", "3", R"({"slo_s":1e999,"generated_gaps_s":[]})",
                           R"({"slo_s":NaN,"generated_gaps_s":[]})"}) {
    const auto ran = run({"deposit"}, text);
    EXPECT_EQ(ran.status, 2) << text;
    EXPECT_EQ(Json::parse(ran.err)["error"], "InvalidArgument");
  }
}

TEST(KvdPlan, BatchAnswersEveryLineInItsPlace) {
  const auto ran = run({"deposit", "--batch"}, std::string(kDeposit) + "\n{\n" + kDeposit + "\n");
  EXPECT_EQ(ran.status, 2);
  EXPECT_EQ(ran.err, "");
  std::istringstream lines(ran.out);
  std::vector<Json> answers;
  for (std::string line; std::getline(lines, line);) answers.push_back(Json::parse(line));
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(answers[0]["left"], 2);
  EXPECT_EQ(answers[1]["error"], "InvalidArgument");
  EXPECT_EQ(answers[2], answers[0]);
  EXPECT_EQ(run({"deposit", "--batch"}, kDeposit).status, 0);
}

// What /v1/snapshots/… answers, put in as it is.
TEST(KvdPlan, ADocumentOfSeveralSnapshotsIsAnsweredLineByLine) {
  const Json snapshot = Json::parse(kDeposit);
  const auto ran = run({"deposit"}, Json({{"snapshots", {snapshot, snapshot}}}).dump(2));
  EXPECT_EQ(ran.status, 0) << ran.err;
  const std::string alone = run({"deposit"}, kDeposit).out;
  EXPECT_EQ(ran.out, alone + alone);
  EXPECT_EQ(run({"deposit"}, R"({"snapshots": []})").out, "");
  EXPECT_EQ(run({"deposit"}, R"({"snapshots": [{}]})").status, 2);
}

TEST(KvdPlan, WrongUseSaysSo) {
  EXPECT_EQ(run({}, "").status, 2);
  EXPECT_EQ(run({"guess"}, "").status, 2);
  EXPECT_EQ(run({"load", "--in"}, "").status, 2);
  const auto missing = run({"load", "--in", "/nonexistent/snapshot"}, "");
  EXPECT_EQ(missing.status, 2);
  EXPECT_EQ(Json::parse(missing.err)["error"], "NotFound");
  EXPECT_EQ(run({"--help"}, "").status, 0);
}

}  // namespace
}  // namespace kvd::planner
