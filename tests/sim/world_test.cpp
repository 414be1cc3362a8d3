#include <gtest/gtest.h>

#include "kvd/sim/run/metrics.hpp"
#include "tests/sim/small_setting.hpp"

namespace kvd::sim::test {
namespace {

RunResult play(const Setting& setting) {
  auto result = run(setting);
  EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message);
  if (result.ok()) return std::move(result).value();
  RunResult nothing;
  nothing.requests.resize(setting.workload.size());
  return nothing;
}

std::vector<double> times(const RequestRecord& record) {
  std::vector<double> out;
  for (const Seconds token : record.tokens) out.push_back(token.count());
  return out;
}

void expect_times(const RequestRecord& record, const std::vector<double>& wanted) {
  ASSERT_EQ(record.tokens.size(), wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_NEAR(record.tokens[i].count(), wanted[i], 1e-8) << "token " << i;
  }
}

// Prefill of 100 tokens 10 ms; then 11 ms a decode step.
TEST(World, OneRequestTakesWhatTheProfileSays) {
  const auto result = play(small_setting("fcfs", {arrival(2, 100, 4)}));
  ASSERT_EQ(result.requests.size(), 1u);
  expect_times(result.requests[0], {2.010, 2.021, 2.032, 2.043});
  EXPECT_NEAR(result.requests[0].finish.count(), 2.043, 1e-8);
  EXPECT_NEAR(result.requests[0].scheduled.count(), 2, 1e-8);
  EXPECT_NEAR(result.totals.compute.count(), 0.043, 1e-8);
  EXPECT_EQ(result.totals.iterations, 4u);
}

TEST(World, APipelinedEngineMakesTheSameTokens) {
  Profile profile = small_profile();
  profile.pipelined = true;
  const auto result = play(small_setting("fcfs", {arrival(2, 100, 4)}, profile));
  expect_times(result.requests[0], {2.010, 2.021, 2.032, 2.043});
}

// A budget of 40 prompt tokens gives 4 + 4 + 2 ms, while the other request goes on decoding.
TEST(World, PromptsArePrefilledInChunks) {
  for (const bool pipelined : {false, true}) {
    Profile profile = small_profile();
    profile.pipelined = pipelined;
    Setting setting = small_setting("fcfs", {arrival(0, 100, 3)}, profile);
    setting.prefill_tokens = 40;
    const auto result = play(setting);
    expect_times(result.requests[0], {0.010, 0.021, 0.032});
    EXPECT_EQ(result.totals.iterations, 5u);
  }
}

TEST(World, ASeatIsTakenFirstComeFirstServed) {
  Profile profile = small_profile();
  profile.limits.max_num_seqs = 1;
  const auto result = play(small_setting("fcfs", {arrival(0, 10, 3), arrival(0, 10, 1)}, profile));
  expect_times(result.requests[0], {0.001, 0.012, 0.023});
  expect_times(result.requests[1], {0.024});
  EXPECT_NEAR(result.requests[1].submitted.count(), 0.023, 1e-8);
}

// 512 tokens of HBM: the second prompt has a seat and waits for the first one's end.
TEST(World, APromptThatIsHeldBackIsTimed) {
  const auto result =
      run(small_setting("fcfs", {arrival(0, 300, 40), arrival(0.1, 300, 4), arrival(60, 10, 4)}));
  ASSERT_TRUE(result.ok()) << result.error().message;
  const auto& records = result->requests;
  EXPECT_EQ(records[0].held, Seconds(0));
  EXPECT_NEAR(records[1].held.count(), (records[1].scheduled - records[1].submitted).count(), 0.02);
  EXPECT_GT(records[1].held, Seconds(0.05));
  EXPECT_EQ(records[2].held, Seconds(0));
}

TEST(World, TheShortestMayHaveTheNextSeat) {
  Profile profile = small_profile();
  profile.limits.max_num_seqs = 1;
  Setting setting =
      small_setting("fcfs", {arrival(0, 10, 2), arrival(0, 10, 5), arrival(0, 10, 1)}, profile);
  setting.shortest_first = true;
  const auto result = play(setting);
  expect_times(result.requests[2], {0.013});
  EXPECT_GE(result.requests[1].submitted, result.requests[2].finish);
}

TEST(World, WhoIsDueFirstHasTheNextSeatWhereThePolicyServesSo) {
  Profile profile = small_profile();
  profile.limits.max_num_seqs = 1;
  Setting setting =
      small_setting("unified", {arrival(0, 10, 2), arrival(0, 10, 2), arrival(0, 10, 1)}, profile);
  setting.workload[1].ttft_slo = Seconds(60);
  setting.workload[2].ttft_slo = Seconds(1);
  const auto due = play(setting);
  EXPECT_GE(due.requests[1].submitted, due.requests[2].finish);
  setting.policy = policy_named("fcfs").value();
  const auto first = play(setting);
  EXPECT_GE(first.requests[2].submitted, first.requests[1].finish);
}

// Six of a kind fit; the oracle's policy takes the short ones first, fcfs as they come.
TEST(World, AnOracleServesTheShortFirst) {
  Workload workload;
  for (int i = 0; i < 40; ++i) workload.push_back(arrival(0, 60, i % 2 == 0 ? 40 : 4));
  const auto wait_of_the_short = [&](const char* policy) {
    double sum = 0;
    Setting setting = small_setting(policy, workload);
    // An admission policy would offer the queue in order of arrival, a few prompts at a time.
    setting.policy.tuning.admission.policy = "none";
    const auto result = play(setting);
    for (std::size_t i = 1; i < 40; i += 2) sum += result.requests[i].finish.count();
    return sum;
  };
  EXPECT_LT(wait_of_the_short("sjf_oracle"), 0.8 * wait_of_the_short("fcfs"));
}

TEST(World, APolicyByLengthBelievesWhatIsPredicted) {
  Workload workload;
  for (int i = 0; i < 40; ++i) workload.push_back(arrival(0, 60, i % 2 == 0 ? 40 : 4));
  const auto wait_of_the_short = [&](bool right) {
    Setting setting = small_setting("srtf", workload);
    setting.policy.tuning.admission.policy = "none";
    for (Arrival& a : setting.workload) a.predicted = right ? a.output : Tokens(44) - a.output;
    double sum = 0;
    const auto result = play(setting);
    for (std::size_t i = 1; i < 40; i += 2) sum += result.requests[i].finish.count();
    return sum;
  };
  EXPECT_LT(wait_of_the_short(true), 0.8 * wait_of_the_short(false));
}

TEST(World, SaysHowMuchOfThePromptsCameBefore) {
  Workload workload = {arrival(0, 10, 1), arrival(0, 10, 1)};
  workload[0].prefix = {1, 2, 3};
  workload[1].prefix = {1, 2, 4, 5, 6};
  EXPECT_NEAR(play(small_setting("fcfs", workload)).totals.prefix_repeats, 2.0 / 8, 1e-9);
}

TEST(World, SeatsAreBoundedByFinalLengthsToo) {
  Profile profile = small_profile();
  profile.limits.max_total_tokens = 30;
  const auto result = play(
      small_setting("fcfs", {arrival(0, 10, 3), arrival(0, 20, 1), arrival(0, 4, 2)}, profile));
  // 13 + 21 > 30: the second one waits, and nobody overtakes it.
  EXPECT_NEAR(result.requests[1].submitted.count(), 0.023, 1e-8);
  EXPECT_NEAR(result.requests[2].submitted.count(), 0.023, 1e-8);
}

// One crowd for each policy runs the same code as three. A run without a sanitizer plays all three.
#if defined(__SANITIZE_ADDRESS__)
const std::vector<std::uint64_t> kCrowds = {1};
#else
const std::vector<std::uint64_t> kCrowds = {1, 2, 3};
#endif

class EveryPolicy : public testing::TestWithParam<const char*> {};

TEST_P(EveryPolicy, EveryRequestMakesItsTokens) {
  for (const bool pipelined : {false, true}) {
    for (const std::uint64_t seed : kCrowds) {
      Profile profile = small_profile();
      profile.pipelined = pipelined;
      const auto result = play(small_setting(GetParam(), crowd(seed), profile));
      ASSERT_FALSE(result.requests.empty()) << GetParam() << " seed " << seed;
      for (const RequestRecord& r : result.requests) {
        ASSERT_TRUE(r.finished()) << GetParam() << " seed " << seed;
        EXPECT_EQ(static_cast<std::int64_t>(r.tokens.size()), r.output.value);
        EXPECT_TRUE(std::is_sorted(r.tokens.begin(), r.tokens.end()));
        EXPECT_GE(r.submitted - r.arrival, Seconds(-1e-9));
        EXPECT_GE(r.scheduled, r.submitted);
        EXPECT_GT(r.tokens.front(), r.scheduled);
        EXPECT_EQ(r.tokens.back(), r.finish);
      }
      EXPECT_EQ(result.totals.rotations_in, result.totals.rotations_out);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Names, EveryPolicy,
                         testing::Values("unified", "lvf", "fcfs", "si_code", "waiting_first",
                                         "swapped_first", "srtf", "ltr", "none", "layerkv",
                                         "layerkv_literal", "whole_request", "past_future",
                                         "orbitflow", "batch_uniform", "request_wise",
                                         "pause_resume", "deposit"));

// Four requests of up to 80 slots, 160 slots: they run together only with layers in DRAM.
Profile streaming_profile(bool pipelined) {
  Profile profile = small_profile();
  profile.shape = {8, 1, 16, Bytes(1024)};
  profile.hbm = profile.shape.slot_bytes() * 160;
  profile.dram = profile.shape.slot_bytes() * 4096;
  profile.limits.max_num_seqs = 4;
  profile.solver_call = Seconds(1e-6);
  profile.pipelined = pipelined;
  return profile;
}

TEST(World, LayersStreamWhereAPlanSaysSo) {
  for (const char* policy : {"orbitflow", "request_wise", "batch_uniform", "deepspeed"}) {
    for (const bool pipelined : {false, true}) {
      const auto result = play(small_setting(policy, crowd(2), streaming_profile(pipelined)));
      for (const RequestRecord& r : result.requests) EXPECT_TRUE(r.finished()) << policy;
      EXPECT_GT(result.totals.plans, 0u) << policy;
      EXPECT_GT(result.totals.planner, Seconds(0)) << policy;
      EXPECT_GT(result.totals.streamed, Bytes(0)) << policy;
    }
  }
}

// Answers that are still short count as long as the mean, so fewer layers stay in HBM.
TEST(World, FlexGenPlusReckonsWithTheMeanOfItsWorkload) {
  const Workload workload = {arrival(0, 60, 40), arrival(0, 60, 40), arrival(40, 60, 900)};
  const auto moved = [&](const char* policy) {
    Setting setting = small_setting(policy, workload, streaming_profile(false));
    setting.until = Seconds(20);
    return play(setting).totals.streamed;
  };
  EXPECT_GT(moved("flexgen_plus"), moved("dynamic_heuristic"));
}

TEST(World, ASlowLinkStallsLayersThatStream) {
  Profile slow = streaming_profile(true);
  slow.link.h2d_bytes_s = slow.link.d2h_bytes_s = 1e7;
  const auto fast = play(small_setting("deepspeed", crowd(2), streaming_profile(true)));
  const auto stalled = play(small_setting("deepspeed", crowd(2), slow));
  EXPECT_GT(stalled.totals.stall, fast.totals.stall);
  EXPECT_GT(stalled.totals.stall, Seconds(0.1));
}

TEST(World, AContendedPoolRotates) {
  const auto result = play(small_setting("lvf", crowd(1)));
  EXPECT_GT(result.totals.rotations_out, 0u);
  EXPECT_GT(result.totals.moved[0], Bytes(0));
  EXPECT_GT(result.totals.blocks_moved, 0u);
  EXPECT_GT(result.totals.hbm_transit, 0);
  EXPECT_LT(result.totals.hbm_transit, 1);
  EXPECT_GT(result.totals.hbm_use, 0.1);
  std::uint32_t seen = 0;
  for (const RequestRecord& r : result.requests) seen += r.rotations;
  EXPECT_GT(seen, 0u);
}

TEST(World, AnAmplePoolHardlyDoes) {
  const auto ample = play(small_setting("lvf", crowd(1), small_profile(2048, 2048)));
  const auto scarce = play(small_setting("lvf", crowd(1)));
  EXPECT_LT(20 * ample.totals.blocks_moved, scarce.totals.blocks_moved);
}

TEST(World, ASlowerLinkDelaysTheSameRequests) {
  const auto last = [](const RunResult& result) {
    Seconds end{0};
    for (const RequestRecord& r : result.requests) end = std::max(end, r.finish);
    return end;
  };
  Profile slow = small_profile();
  slow.link.h2d_bytes_s = slow.link.d2h_bytes_s = 1e6;
  const auto fast_end = last(play(small_setting("si_code", crowd(1))));
  EXPECT_GT(last(play(small_setting("si_code", crowd(1), slow))), fast_end);
}

TEST(World, EqualSettingsGiveEqualResults) {
  const auto first = play(small_setting("unified", crowd(5)));
  const auto again = play(small_setting("unified", crowd(5)));
  const auto other = play(small_setting("unified", crowd(6)));
  ASSERT_EQ(first.requests.size(), again.requests.size());
  bool differs = false;
  for (std::size_t i = 0; i < first.requests.size(); ++i) {
    EXPECT_EQ(times(first.requests[i]), times(again.requests[i]));
    differs |= times(first.requests[i]) != times(other.requests[i]);
  }
  EXPECT_TRUE(differs);
  EXPECT_EQ(first.totals.hbm_transit, again.totals.hbm_transit);
}

TEST(World, EnginesOnOneDeviceTakeTurns) {
  Setting setting = small_setting("fcfs", {arrival(0, 100, 3, 0), arrival(0, 100, 3, 1)});
  setting.engines.push_back(setting.engines.front());
  const auto apart = play(setting);
  expect_times(apart.requests[0], {0.010, 0.021, 0.032});
  expect_times(apart.requests[1], {0.010, 0.021, 0.032});
  setting.one_device = true;
  const auto turns = play(setting);
  expect_times(turns.requests[0], {0.010, 0.031, 0.053});
  expect_times(turns.requests[1], {0.020, 0.042, 0.064});
}

// It reports its last iteration although nothing is left to do, or its blocks would stay held.
TEST(World, MemoryOfAnEngineThatHasNothingMoreToDoGoesToAnother) {
  Profile profile = small_profile();
  profile.pipelined = true;
  // Each request takes more than half of HBM.
  Setting setting =
      small_setting("fcfs", {arrival(0, 300, 3, 1), arrival(0.001, 300, 3, 0)}, profile);
  setting.engines.push_back(setting.engines.front());
  const auto result = play(setting);
  EXPECT_TRUE(result.requests[0].finished());
  EXPECT_TRUE(result.requests[1].finished());
}

TEST(World, ADomainKeepsItsGuarantee) {
  // Engine 1's crowd may not take what engine 0 is guaranteed, so engine 0 never waits.
  Workload workload = crowd(3, 40);
  for (Arrival& a : workload) a.engine = 1;
  workload.push_back(arrival(workload.back().time.count(), 100, 20, 0));
  Setting setting = small_setting("fcfs", std::move(workload));
  setting.engines.push_back(setting.engines.front());
  setting.engines[1].domain = 2;
  for (EngineSetting& engine : setting.engines) {
    engine.guarantee = Bytes(engine.profile.hbm.value / 2);
  }
  const auto result = play(setting);
  const RequestRecord& guest = result.requests.back();
  EXPECT_NEAR((guest.tokens.front() - guest.arrival).count(), 0.010, 1e-8);
}

TEST(World, ARequestThatNeverFitsIsRecordedAsRefused) {
  const auto result = play(small_setting("fcfs", {arrival(0, 10'000, 5), arrival(0, 10, 2)}));
  EXPECT_TRUE(result.requests[0].refused);
  EXPECT_FALSE(result.requests[0].finished());
  EXPECT_TRUE(result.requests[1].finished());
  EXPECT_EQ(result.totals.refused, 1u);
  EXPECT_FALSE(result.totals.note.empty());
  EXPECT_DOUBLE_EQ(measure(result).ttft_attainment, 0.5);
}

TEST(World, EndsWhenToldAndSaysSo) {
  Setting setting = small_setting("fcfs", {arrival(0, 10, 1000)});
  setting.engines.front().profile = small_profile(256, 512);
  setting.until = Seconds(1);
  const auto result = play(setting);
  EXPECT_FALSE(result.requests[0].finished());
  EXPECT_FALSE(result.totals.note.empty());
  EXPECT_NEAR(result.totals.duration.count(), 1, 1e-8);
}

void expect_refused(const Setting& setting, const char* why) {
  const auto result = run(setting);
  ASSERT_FALSE(result.ok()) << why;
  EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(result.error().message.find(why), std::string::npos) << result.error().message;
}

TEST(World, RefusesSettingsThatCannotRun) {
  const Setting good = small_setting("fcfs", {arrival(0, 10, 2), arrival(1, 10, 2)});
  Setting bad = good;
  bad.workload.clear();
  expect_refused(bad, "no requests");
  bad = good;
  bad.workload[1].engine = 3;
  expect_refused(bad, "engine 3");
  bad = good;
  std::swap(bad.workload[0], bad.workload[1]);
  expect_refused(bad, "order");
  bad = good;
  bad.workload[0].output = Tokens(0);
  expect_refused(bad, "no tokens");
  bad = good;
  bad.hbm = Bytes(100);
  expect_refused(bad, "does not fit");
  bad = good;
  bad.engines.clear();
  expect_refused(bad, "engine");
  bad = good;
  bad.prefill_tokens = 0;
  expect_refused(bad, "prefill");
}

}  // namespace
}  // namespace kvd::sim::test
