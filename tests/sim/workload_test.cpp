#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <set>
#include <sstream>

#include "kvd/sim/run/inputs.hpp"
#include "kvd/sim/workload/announce.hpp"
#include "kvd/sim/workload/arrival_times.hpp"
#include "kvd/sim/workload/generators.hpp"
#include "kvd/sim/workload/merge.hpp"
#include "kvd/sim/workload/trace.hpp"

namespace kvd::sim {
namespace {

using ::testing::HasSubstr;

Result<Trace> read(const std::string& text, std::uint64_t seed = 1) {
  std::istringstream in(text);
  return read_trace(in, "trace", seed);
}

std::string azure_rows(int good, int bad) {
  std::string text = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  for (int i = 0; i < bad; ++i) text += "yesterday,374,44\n";
  for (int i = 0; i < good; ++i) {
    text += "2023-11-16 18:15:" + std::to_string(10 + i % 50) + ".5000000,374,44\n";
  }
  return text;
}

TEST(AzureTrace, TimesStartAtZeroAndLengthsAreTheRecordedOnes) {
  const auto trace = read(
      "TIMESTAMP,ContextTokens,GeneratedTokens\n"
      "2023-11-16 23:59:59.5000000,374,44\r\n"
      "2023-11-17 00:00:01.7500000,396,109\n");
  ASSERT_TRUE(trace.ok());
  ASSERT_EQ(trace->requests.size(), 2U);
  EXPECT_EQ(trace->requests[0].time.count(), 0);
  EXPECT_NEAR(trace->requests[1].time.count(), 2.25, 1e-5);
  EXPECT_EQ(trace->requests[1].prompt, Tokens(396));
  EXPECT_EQ(trace->requests[1].output, Tokens(109));
}

TEST(AzureTrace, FewMalformedRowsAreLeftOutWithTheirLines) {
  const auto trace = read(azure_rows(99, 1));
  ASSERT_TRUE(trace.ok());
  EXPECT_EQ(trace->requests.size(), 99U);
  EXPECT_EQ(trace->complaint(), "1 of 100 rows left out, the first at line 2");
}

TEST(AzureTrace, MoreThanOneInAHundredAreRefusedWithCountAndLine) {
  const auto trace = read(azure_rows(98, 2));
  ASSERT_FALSE(trace.ok());
  EXPECT_EQ(trace.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(trace.error().message, HasSubstr("2 of 100 rows left out, the first at line 2"));
}

TEST(AzureTrace, RefusesWhatIsNoRequest) {
  for (const char* row :
       {"2023-13-16 18:15:46,1,1", "2023-11-16 18:15:46,0,1", "2023-11-16 18:15:46,1,-4",
        "2023-11-16 18:15:46,1", "", "2023-11-16 18:15:46,1,1,1", "2023-11-16 18:15:46,1,1e3"}) {
    const auto trace = read("TIMESTAMP,ContextTokens,GeneratedTokens\n" + std::string(row) + "\n");
    EXPECT_FALSE(trace.ok()) << row;
  }
}

TEST(LengthsTrace, NanosecondsBecomeSeconds) {
  const auto trace =
      read("arrival_time_ns,input_toks,output_toks\n46926808,2358,531\n1046926808,1034,769\n");
  ASSERT_TRUE(trace.ok());
  EXPECT_NEAR(trace->requests[1].time.count(), 1, 1e-9);
  EXPECT_EQ(trace->requests[0].prompt, Tokens(2358));
}

constexpr const char* kMooncakeRows =
    "{\"timestamp\": 0, \"input_length\": 10, \"output_length\": 5, \"hash_ids\": [0, 7]}\n"
    "{\"timestamp\": 0, \"input_length\": 11, \"output_length\": 6, \"hash_ids\": [0]}\n"
    "{\"timestamp\": 3000, \"input_length\": 12, \"output_length\": 7, \"hash_ids\": []}\n";

TEST(MooncakeTrace, JittersTheGridBySeedAndKeepsPrefixes) {
  const auto trace = read(kMooncakeRows, 1);
  ASSERT_TRUE(trace.ok());
  ASSERT_EQ(trace->requests.size(), 3U);
  EXPECT_EQ(trace->requests[0].time.count(), 0);
  EXPECT_NE(trace->requests[1].time.count(), 0) << "two requests of one grid point stay together";
  EXPECT_LE(trace->requests[2].time.count(), 6);
  std::size_t with_two = 0;
  for (const auto& request : trace->requests) with_two += request.prefix.size() == 2 ? 1U : 0U;
  EXPECT_EQ(with_two, 1U);
  EXPECT_EQ(read(kMooncakeRows, 1)->requests[1].time, trace->requests[1].time);
  EXPECT_NE(read(kMooncakeRows, 2)->requests[1].time, trace->requests[1].time);
}

TEST(Trace, AnotherFormatIsRefusedNamingThoseKnown) {
  for (const char* text : {"time,length\n1,2\n", "", "\n"}) EXPECT_FALSE(read(text).ok());
  EXPECT_THAT(read("time,length\n1,2\n").error().message, HasSubstr("arrival_time_ns"));
}

TEST(Trace, AMissingFileNamesTheFolderAndTheWayOut) {
  const auto workload = make_workload("no-such-trace.csv", {});
  ASSERT_FALSE(workload.ok());
  EXPECT_EQ(workload.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(workload.error().message, HasSubstr("KVD_TRACES"));
}

double mean_gap(const std::vector<Seconds>& times) {
  return times.back().count() / static_cast<double>(times.size());
}
double gap_cv(const std::vector<Seconds>& times) {
  const double mean = mean_gap(times);
  double squares = 0;
  double before = 0;
  for (const auto& time : times) {
    squares += std::pow(time.count() - before - mean, 2);
    before = time.count();
  }
  return std::sqrt(squares / static_cast<double>(times.size())) / mean;
}

TEST(ArrivalTimes, HaveTheRateAndTheVariationAskedFor) {
  for (const double cv : {0.0, 0.5, 1.0, 3.0}) {
    Random random(7);
    const auto times =
        arrival_times({.rate = 4, .cv = cv, .duration = {}, .requests = 100'000}, random);
    ASSERT_TRUE(times.ok());
    EXPECT_NEAR(mean_gap(*times), 0.25, 0.01) << "cv " << cv;
    EXPECT_NEAR(gap_cv(*times), cv, 0.05 + 0.03 * cv) << "cv " << cv;
  }
}

TEST(ArrivalTimes, EndWithTheDuration) {
  Random random(7);
  const auto times =
      arrival_times({.rate = 10, .cv = 1, .duration = Seconds(20), .requests = {}}, random);
  ASSERT_TRUE(times.ok());
  EXPECT_NEAR(static_cast<double>(times->size()), 200, 60);
  EXPECT_LE(times->back().count(), 20);
}

TEST(ArrivalTimes, RefuseWhatHasNoMeaning) {
  Random random(1);
  const double nan = std::nan("");
  for (const ArrivalPattern& bad :
       {ArrivalPattern{0, 1, Seconds(1), {}}, ArrivalPattern{-1, 1, Seconds(1), {}},
        ArrivalPattern{nan, 1, Seconds(1), {}}, ArrivalPattern{1, -1, Seconds(1), {}},
        ArrivalPattern{1, nan, Seconds(1), {}}, ArrivalPattern{1, 1, Seconds(0), {}},
        ArrivalPattern{1, 1, {}, 0}, ArrivalPattern{1, 1, {}, {}},
        ArrivalPattern{1e9, 1, Seconds(1e9), {}}}) {
    EXPECT_EQ(arrival_times(bad, random).error().code, ErrorCode::kInvalidArgument);
  }
}

std::vector<std::int64_t> prompts_of(const Workload& workload) {
  std::vector<std::int64_t> prompts;
  for (const auto& request : workload) prompts.push_back(request.prompt.value);
  std::sort(prompts.begin(), prompts.end());
  return prompts;
}
double mean_of(const Workload& workload, Tokens Arrival::*length) {
  double sum = 0;
  for (const auto& request : workload) sum += static_cast<double>((request.*length).value);
  return sum / static_cast<double>(workload.size());
}
Workload generated(const std::string& name, std::size_t requests, std::uint64_t seed = 1) {
  auto workload = make_workload(
      "gen:" + name, {.seed = seed, .rate = {}, .duration = {}, .requests = requests, .cv = {}});
  EXPECT_TRUE(workload.ok()) << name;
  return std::move(workload).value();
}

TEST(Generators, FollowThePublishedQuantiles) {
  const auto prompts = prompts_of(generated("azure", 20'000));
  EXPECT_NEAR(static_cast<double>(prompts[10'000]), 1020, 30);
  EXPECT_NEAR(static_cast<double>(prompts[18'000]), 2735, 60);
  EXPECT_NEAR(static_cast<double>(prompts[19'800]), 4142, 150);
}

TEST(Generators, FollowThePublishedMeans) {
  const auto sharegpt = generated("sharegpt", 50'000);
  EXPECT_NEAR(mean_of(sharegpt, &Arrival::prompt), 161, 4);
  EXPECT_NEAR(mean_of(sharegpt, &Arrival::output), 338, 6);
  // The sample itself has 858 and 653 tokens.
  const auto llama = generated("sharegpt-llama", 50'000);
  EXPECT_NEAR(mean_of(llama, &Arrival::prompt), 858, 858 * 0.05);
  EXPECT_NEAR(mean_of(llama, &Arrival::output), 653, 653 * 0.03);
}

TEST(Generators, NoOrbitFlowRequestIsLongerThanItsBatch) {
  for (const auto& request : generated("orbitflow-ll-heavy", 5'000)) {
    EXPECT_LE(request.prompt.value + request.output.value, 32384);
    EXPECT_GE(request.prompt.value, 1);
  }
}

TEST(Generators, EachMakesRequestsThatDependOnTheSeedAlone) {
  for (const Generator& generator : generators()) {
    const auto workload = generated(generator.name, 50);
    ASSERT_EQ(workload.size(), 50U) << generator.name;
    const auto again = generated(generator.name, 50);
    const auto other = generated(generator.name, 50, 2);
    EXPECT_EQ(prompts_of(workload), prompts_of(again)) << generator.name;
    EXPECT_NE(prompts_of(workload), prompts_of(other)) << generator.name;
    EXPECT_TRUE(std::is_sorted(workload.begin(), workload.end(),
                               [](const auto& a, const auto& b) { return a.time < b.time; }));
  }
}

TEST(Generators, TwoRatesMeetTheSameRequests) {
  const auto at = [](double rate) {
    return prompts_of(*make_workload(
        "gen:azure", {.seed = 3, .rate = rate, .duration = {}, .requests = 100, .cv = {}}));
  };
  EXPECT_EQ(at(1), at(7));
}

TEST(Generators, FixedLengthsAreFixed) {
  const auto workload = generated("fixed-128-512", 3);
  EXPECT_EQ(workload[2].prompt, Tokens(128));
  EXPECT_EQ(workload[2].output, Tokens(512));
  for (const char* bad : {"gen:fixed-", "gen:fixed-0-1", "gen:fixed-12", "gen:fixed-1-2x",
                          "gen:fixed-1-0", "gen:nothing"}) {
    EXPECT_FALSE(make_workload(bad, {}).ok()) << bad;
  }
}

TEST(Traces, AreStretchedToARateAndCut) {
  const char* folder = std::getenv("KVD_TRACES");
  const std::string file =
      std::string(folder ? folder : "../shared/traces") + "/azure2023_llm_conv.csv";
  const auto whole = make_workload(file, {});
  if (!whole.ok() && whole.error().code == ErrorCode::kNotFound) {
    GTEST_SKIP() << "no trace at " << file << " (KVD_TRACES)";
  }
  ASSERT_TRUE(whole.ok()) << whole.error().message;
  const auto faster = make_workload(
      file, {.seed = 1, .rate = 11, .duration = Seconds(60), .requests = {}, .cv = {}});
  ASSERT_TRUE(faster.ok());
  EXPECT_LE(faster->back().time.count(), 60);
  EXPECT_EQ(
      make_workload(file, {.seed = 1, .rate = 11, .duration = {}, .requests = 7, .cv = {}})->size(),
      7U);
  for (const WorkloadOptions& bad :
       {WorkloadOptions{1, 0.0, {}, {}, {}}, WorkloadOptions{1, {}, Seconds(0), {}, {}},
        WorkloadOptions{1, {}, {}, 0, {}}, WorkloadOptions{1, {}, {}, {}, 2.0}}) {
    EXPECT_EQ(make_workload(file, bad).error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(Merged, OrdersByTimeAndNamesTheEngine) {
  const auto one = generated("azure", 20);
  const auto two = generated("sharegpt", 20, 2);
  const auto all = merged({{one, {}, {}, {}}, {two, {}, Seconds(0.05), {}}});
  ASSERT_EQ(all.size(), 40U);
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_LE(all[i == 0 ? 0 : i - 1].time, all[i].time);
    EXPECT_EQ(all[i].tbt_slo.has_value(), all[i].engine == 1);
  }
}

constexpr Tokens kContext[] = {Tokens(4096)};

Workload announced(Workload workload, const std::string& how) {
  EXPECT_TRUE(announce_lengths(workload, how, 1, kContext).ok()) << how;
  return workload;
}

TEST(Announced, IsNeverLessThanTheAnswerNorMoreThanTheContextLeaves) {
  Workload exact = generated("sharegpt", 300);
  exact[0].prompt = Tokens(5000);  // longer than the context
  for (const char* how : {"300", "8192", "context", "mix"}) {
    const Workload said = announced(exact, how);
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const Tokens left = kContext[0] - exact[i].prompt;
      EXPECT_GE(*said[i].announced, exact[i].output) << how;
      EXPECT_LE(*said[i].announced, std::max(exact[i].output, left)) << how;
    }
    EXPECT_EQ(said[0].announced, exact[0].output) << how;
  }
  EXPECT_FALSE(announced(exact, "exact")[1].announced);
  EXPECT_EQ(announced(exact, "8192")[1].announced, kContext[0] - exact[1].prompt);
}

TEST(Announced, AMixIsAThirdOfEachKindOfClient) {
  Workload plain = generated("sharegpt", 300);
  Workload mixed = plain;
  const Tokens context[] = {Tokens(16000)};
  ASSERT_TRUE(announce_lengths(mixed, "mix", 1, context).ok());
  int usual = 0, rest = 0, near = 0;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    const std::int64_t said = mixed[i].announced->value;
    usual += said == 8192;
    rest += said == 16000 - plain[i].prompt.value;
    near += said < 2 * plain[i].output.value;
  }
  for (const int kind : {usual, rest, near}) EXPECT_NEAR(kind, 100, 35);
}

TEST(Chat, EachTurnBeginsWithTheTurnBefore) {
  const Workload turns = generated("chat", 2000);
  ASSERT_EQ(turns.size(), 2000u);
  std::map<std::uint64_t, std::vector<std::uint64_t>> by_last;  // prefixes by their last id
  std::size_t later = 0;
  for (std::size_t i = 0; i < turns.size(); ++i) {
    const auto& prefix = turns[i].prefix;
    EXPECT_EQ(static_cast<std::int64_t>(prefix.size()), turns[i].prompt.value / 512);
    EXPECT_LE(turns[i].prompt.value + turns[i].output.value, 32768);
    EXPECT_GE(turns[i].time, turns[i > 0 ? i - 1 : 0].time);
    // Equal ids are equal prefixes: everything known up to an id is the beginning of its prompt.
    for (std::size_t block = 0; block < prefix.size(); ++block) {
      const std::vector<std::uint64_t> leading(prefix.begin(),
                                               prefix.begin() + static_cast<std::ptrdiff_t>(block));
      const auto [known, fresh] = by_last.try_emplace(prefix[block], leading);
      ASSERT_EQ(known->second, leading);
      later += fresh ? 0u : 1u;
    }
  }
  EXPECT_GT(later, by_last.size()) << "most blocks were asked for before";
}

TEST(Agents, ReadAHundredTimesWhatTheyWriteAndMostOfItAgain) {
  const auto workload = make_workload(
      "gen:agents", {.seed = 1, .rate = 2, .duration = Seconds(7200), .requests = {}, .cv = {}});
  ASSERT_TRUE(workload.ok());
  double read = 0, written = 0, asked = 0;
  std::map<std::uint64_t, std::uint64_t> by_last;
  std::set<std::uint64_t> ends;  // blocks that prompts went on after in different ways
  std::map<std::uint64_t, std::uint64_t> next;
  for (const Arrival& turn : *workload) {
    read += static_cast<double>(turn.prompt.value);
    written += static_cast<double>(turn.output.value);
    asked += static_cast<double>(turn.prefix.size());
    ASSERT_EQ(std::ssize(turn.prefix), turn.prompt.value / kPrefixTokens.value);
    for (std::size_t i = 1; i < turn.prefix.size(); ++i) {
      const auto before = by_last.try_emplace(turn.prefix[i], turn.prefix[i - 1]).first;
      ASSERT_EQ(before->second, turn.prefix[i - 1]) << "a block says all before it";
      const auto after = next.try_emplace(turn.prefix[i - 1], turn.prefix[i]).first;
      if (after->second != turn.prefix[i]) ends.insert(turn.prefix[i - 1]);
    }
  }
  EXPECT_GT(read / written, 60);
  EXPECT_LT(read / written, 200);
  EXPECT_GT(1 - static_cast<double>(by_last.size()) / asked, 0.9);
  EXPECT_GT(ends.size(), 6u) << "sub-agents go on after what the main agent has read";
}

TEST(Agents, HaveTheRateAskedFor) {
  const auto workload = make_workload(
      "gen:agents", {.seed = 1, .rate = 5, .duration = Seconds(20000), .requests = {}, .cv = {}});
  ASSERT_TRUE(workload.ok());
  EXPECT_NEAR(static_cast<double>(workload->size()), 100000, 15000);
}

TEST(Chat, HasTheRateAskedFor) {
  const auto workload = make_workload(
      "gen:chat", {.seed = 1, .rate = 8, .duration = Seconds(3000), .requests = {}, .cv = {}});
  ASSERT_TRUE(workload.ok());
  // Conversations that are still going on at the end miss turns.
  EXPECT_NEAR(static_cast<double>(workload->size()), 24000, 2400);
  EXPECT_EQ(prompts_of(generated("chat", 500)), prompts_of(generated("chat", 500)));
}

}  // namespace
}  // namespace kvd::sim
