#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "tests/lab/grid/class_verdict.hpp"
#include "tests/lab/grid/classes.hpp"
#include "tests/lab/grid/grid_page.hpp"
#include "tests/lab/grid/ledger.hpp"
#include "tests/lab/grid/session.hpp"
#include "tests/support/runtime_folder.hpp"

namespace kvd::sim::grid {
namespace {

using ::testing::HasSubstr;

constexpr const char* kSmall = R"({"seed": 1, "cells": 2, "machines": [["l20-llama2-7b"]],
  "lengths": [{"source": "gen:fixed-64-8", "duration_s": 2, "ttft_s": 1, "tbt_s": 0.1}],
  "classes": [{"name": "one"}, {"name": "two", "strict_share": 0.5, "ttft": 0.5, "tbt": 0.5}],
  "cv": [1], "max_tokens": ["8192"], "load": [0.5, 1], "hbm": [1], "dram": [1]})";

class Folder : public testing::Test {
 protected:
  [[nodiscard]] std::string text(const char* file) const {
    std::ifstream in(folder_ / file);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  test::RuntimeFolder own_;
  std::filesystem::path folder_ = own_.path();
};

TEST(GridAxes, TheCommittedOnesCoverWhatTheyShould) {
  const auto axes = read_axes(committed_axes());
  ASSERT_TRUE(axes.ok()) << axes.error().message;
  const auto cells = cells_of(*axes);
  EXPECT_GE(cells.size(), 200u);
  const auto count = [&](auto&& test) {
    return static_cast<std::size_t>(std::count_if(cells.begin(), cells.end(), test));
  };
  EXPECT_EQ(3 * count([](const Cell& c) { return c.load <= 1; }), cells.size());
  for (const std::size_t engines : {1u, 2u, 3u}) {
    EXPECT_GT(count([&](const Cell& c) { return c.profiles.size() == engines; }), 30u) << engines;
  }
  for (const double cv : axes->cv) {
    EXPECT_EQ(count([&](const Cell& c) { return c.cv == cv; }), cells.size() / axes->cv.size());
  }
  EXPECT_EQ(*std::max_element(axes->cv.begin(), axes->cv.end()), 6);
  EXPECT_GT(count([](const Cell& c) { return c.lengths.source == "gen:fixed-131072-300"; }), 30u);
  EXPECT_EQ(count([](const Cell& c) { return !c.classes.parts.empty(); }), cells.size() / 2);
}

// Results of earlier versions, and of other policies, are compared with results of these very
// cells.
TEST(GridAxes, TheCellsOfMachinesStayWhatTheyAre) {
  const Axes axes = read_axes(committed_axes()).value();
  EXPECT_EQ(axes.digest, "d70cb64124126340");
  const auto cells = cells_of(axes);
  EXPECT_EQ(cells.front().id, "c001");
  EXPECT_EQ(text_of(cells[6]),
            "gen:sharegpt on h100-pcie-llama3-8b with 0.25 x HBM, 2 x knee, cv 1, "
            "max_tokens exact, a tenth strict, DRAM 4 x HBM");
  EXPECT_EQ(text_of(cells[64]),
            "gen:fixed-2000-200 on gh200-qwen2.5-32b + gh200-mixtral-8x7b with 1 x HBM, "
            "1 x knee, cv 1, max_tokens exact, a tenth strict, DRAM 0.25 x HBM");
}

TEST(GridAxes, TheCommittedClassesAreTightAndLooseInEveryLayout) {
  const auto axes = read_axes(committed_goals());
  ASSERT_TRUE(axes.ok()) << axes.error().message;
  EXPECT_TRUE(axes->by_class);
  const auto cells = cells_of(*axes);
  EXPECT_GE(cells.size(), 120u);
  EXPECT_EQ(cells.front().id, "g001");
  const auto count = [&](auto&& test) {
    return static_cast<std::size_t>(std::count_if(cells.begin(), cells.end(), test));
  };
  for (const double share : {0.1, 0.3, 0.5}) {
    EXPECT_EQ(3 * count([&](const Cell& c) {
                return std::abs(classes_of(c).front().share - share) < 1e-9;
              }),
              cells.size());
  }
  const auto loosest = [](const Cell& c) { return c.classes.parts.back().ttft; };
  EXPECT_GT(count([&](const Cell& c) { return loosest(c) == 6; }), 50u);
  EXPECT_GT(count([&](const Cell& c) { return loosest(c) == 120; }), 70u);
  EXPECT_GT(count([](const Cell& c) { return c.classes.parts.size() == 2; }), 20u);
  EXPECT_EQ(count([](const Cell& c) { return c.apart; }), 45u);
  EXPECT_EQ(count([](const Cell& c) { return !c.apart && c.profiles.size() == 2; }), 45u);
  EXPECT_EQ(std::minmax_element(axes->load.begin(), axes->load.end()),
            std::pair(axes->load.begin(), axes->load.end() - 1));
  EXPECT_EQ(axes->load.front(), 0.8);
  EXPECT_EQ(axes->load.back(), 2);
}

TEST(GridAxes, GiveTheSameCellsEachTimeAndOthersByAnotherSeed) {
  const auto texts = [](std::uint64_t seed) {
    Axes axes = read_axes(committed_axes()).value();
    axes.seed = seed;
    std::vector<std::string> out;
    for (const Cell& cell : cells_of(axes)) out.push_back(cell.id + text_of(cell));
    return out;
  };
  EXPECT_EQ(texts(15), texts(15));
  EXPECT_NE(texts(15), texts(16));
}

TEST(GridAxes, AreRefusedByTheirKey) {
  const auto changed = [](const std::string& from, const std::string& to) {
    std::string text = kSmall;
    return text.replace(text.find(from), from.size(), to);
  };
  for (const auto& [from, to, says] :
       {std::tuple{"\"cells\": 2", "\"cells\": 0", "cells"},
        std::tuple{"\"cv\": [1]", "\"cv\": [0]", "cv"}, std::tuple{"\"load\"", "\"loaf\"", "load"},
        std::tuple{"[1]})", "[1]", "axes"}, std::tuple{"0.5, \"ttft\"", "2, \"ttft\"", "share"},
        std::tuple{"[[\"l20-llama2-7b\"]]", "[[]]", "profile"}}) {
    std::string text = kSmall;
    if (text.find(from) == std::string::npos) continue;
    const auto axes = read_axes(changed(from, to));
    ASSERT_FALSE(axes.ok()) << to;
    EXPECT_EQ(axes.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(axes.error().message, HasSubstr(says));
  }
}

constexpr const char* kClasses = R"({"seed": 1, "cells": 2, "ids": "g", "by_class": true,
  "machines": [["l20-llama2-7b"],
               {"profiles": ["l20-llama2-7b", "l20-llama2-7b"], "apart": true}],
  "lengths": [{"source": "gen:fixed-64-8", "duration_s": 20, "ttft_s": 1, "tbt_s": 0.1}],
  "classes": [{"name": "three", "parts": [{"share": 0.3, "ttft": 6},
                                          {"share": 0.5, "ttft": 120, "tbt": 10}]}],
  "cv": [1], "max_tokens": ["8192"], "load": [1], "hbm": [1], "dram": [1]})";

TEST(GridAxes, ClassesAreRefusedThatDoNotFitTheMachines) {
  for (const auto& [from, to, says] :
       {std::tuple{"\"share\": 0.5", "\"share\": 0.7", "below 1 together"},
        std::tuple{"\"share\": 0.3", "\"share\": 0", "shares between"},
        std::tuple{"\"ttft\": 6", "\"ttft\": 0.5", "tightest"},
        std::tuple{"\"parts\"", "\"bits\"", "parts"},
        std::tuple{R"({"share": 0.3, "ttft": 6},)", "", ""},
        std::tuple{R"("l20-llama2-7b"], "apart")", R"("a", "b", "c"], "apart")",
                   "fewer classes"}}) {
    std::string text = kClasses;
    const std::size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    const auto axes = read_axes(text.replace(at, std::string(from).size(), to));
    const std::string why = axes.ok() ? "" : axes.error().message;
    EXPECT_EQ(axes.ok(), std::string(says).empty()) << from << why;
    EXPECT_THAT(why, HasSubstr(says));
  }
}

/// Requests by engine and goal for the first token.
std::map<std::pair<std::uint32_t, double>, double> counted(const Setting& setting) {
  std::map<std::pair<std::uint32_t, double>, double> out;
  for (const Arrival& arrival : setting.workload) {
    const double ttft = arrival.ttft_slo.value_or(Seconds(1)).count();
    out[{arrival.engine, ttft}] += 1.0 / static_cast<double>(setting.workload.size());
  }
  return out;
}

TEST(GridCell, ClassesAreMixedOrHaveAnEngineEach) {
  Cell cell = cells_of(read_axes(kClasses).value()).front();
  cell.profiles = {"l20-llama2-7b", "l20-llama2-7b"};
  cell.apart = false;
  const auto mixed = counted(setting_of(cell, 100, "fcfs", 1).value());
  EXPECT_NEAR(mixed.at({0, 1}), 0.1, 0.03);
  EXPECT_NEAR(mixed.at({1, 120}), 0.25, 0.03);
  EXPECT_EQ(mixed.size(), 6u);
  cell.apart = true;
  const auto apart = counted(setting_of(cell, 100, "fcfs", 1).value());
  EXPECT_EQ(apart.size(), 3u) << "the last engine has the classes that are left";
  EXPECT_NEAR(apart.at({0, 1}), 0.2, 0.03);
  EXPECT_NEAR(apart.at({1, 6}), 0.3, 0.03);
  EXPECT_NEAR(apart.at({1, 120}), 0.5, 0.03);
}

TEST(GridCell, TheTightestAloneComeAsTheyWouldBesideTheOthers) {
  Cell cell = cells_of(read_axes(kClasses).value()).front();
  for (const bool apart : {false, true}) {
    cell.profiles = {"l20-llama2-7b", "l20-llama2-7b"};
    cell.apart = apart;
    const Workload all = setting_of(cell, 20, "fcfs", 1).value().workload;
    Workload alone = all;
    leave_tightest(cell, alone);
    ASSERT_FALSE(alone.empty());
    std::size_t i = 0;
    for (const Arrival& arrival : all) {
      if (arrival.ttft_slo.value_or(Seconds(1)) != Seconds(1)) continue;
      ASSERT_LT(i, alone.size());
      EXPECT_EQ(alone[i].time, arrival.time);
      EXPECT_EQ(alone[i++].engine, arrival.engine);
    }
    EXPECT_EQ(i, alone.size());
    EXPECT_EQ(tightest_alone(cell).profiles.size(), apart ? 1u : 2u);
    EXPECT_EQ(tightest_knee_name(cell), knee_name(tightest_alone(cell)));
  }
  cell.apart = false;
  cell.classes = {"a half strict", {{0.5, 0.4, 0.6}}};
  EXPECT_DOUBLE_EQ(tightest_alone(cell).lengths.ttft_s, 0.4);
  EXPECT_NE(tightest_knee_name(cell), knee_name(cell)) << "a tighter goal has another knee";
}

TEST(GridCell, InWhichNoRequestComesIsRefused) {
  const Cell cell{"c", {"l20-llama2-7b"}, {"gen:sharegpt", 0.001, 5, 0.1}, {}, 1, "exact", 1, 1, 4};
  const auto knee = knee_of(cell);
  ASSERT_FALSE(knee.ok());
  EXPECT_THAT(knee.error().message, HasSubstr("a longer duration"));
}

TEST(GridCell, LongRequestsFitAndAnnounceNoMoreThanThat) {
  Cell cell{"c", {"l20-llama2-7b"}, {"gen:fixed-131072-300", 100, 60, 0.2}, {}, 1, "8192", 1, 0.5,
            0.25};
  cell.classes = {"strict", {{0.5, 0.5, 0.5}}};
  const auto setting = setting_of(cell, 1, "fcfs", 1);
  ASSERT_TRUE(setting.ok()) << setting.error().message;
  const Profile& profile = setting->engines.front().profile;
  const Bytes token = profile.shape.bytes_per_token_per_layer * std::int64_t{profile.shape.layers};
  std::size_t strict = 0;
  for (const Arrival& arrival : setting->workload) {
    EXPECT_LE((arrival.prompt + *arrival.announced).value, profile.hbm / token / 4);
    EXPECT_GE(*arrival.announced, arrival.output);
    strict += arrival.ttft_slo == Seconds(30);
  }
  EXPECT_GT(strict, setting->workload.size() / 4);
  EXPECT_LT(strict, setting->workload.size() * 3 / 4);
  EXPECT_LT(*setting->dram, *setting->hbm);
  EXPECT_LT(*setting->hbm, profile.hbm);
}

// At 1,410 s one request comes back in and the other has no room for its next chunk, so nothing can
// run. Each plan then woke the engine, whose step asked for the next plan, for ever at one instant.
TEST(GridCell, PlansThatLetNobodyRunDoNotStopTime) {
  const auto cells = cells_of(read_axes(committed_axes()).value());
  const auto cell =
      std::find_if(cells.begin(), cells.end(), [](const auto& c) { return c.id == "c034"; });
  constexpr double kKnee = 0.09638817658799631;
  const auto result = play_policy(*cell, kKnee, "orbitflow", {1, 1}, [] { return false; });
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_EQ(result->mean.finished, result->mean.requests);
}

TEST_F(Folder, ALedgerGoesOnAfterALineThatWasNotFinished) {
  const auto file = folder_ / "lines.jsonl";
  const Ledger::Json header = {{"axes", "a"}};
  {
    auto ledger = Ledger::open(file, header);
    ASSERT_TRUE(ledger.ok());
    ASSERT_TRUE(ledger->add("one", {{"x", 1}}).ok());
  }
  std::ofstream(file, std::ios::app) << R"({"name":"tw)";
  auto again = Ledger::open(file, header);
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_EQ(again->lines().size(), 1u);
  ASSERT_TRUE(again->add("two", {{"x", 2}}).ok());
  EXPECT_EQ(Ledger::open(file, header)->lines().at("two")["x"], 2);
  const auto other = Ledger::open(file, {{"axes", "b"}});
  ASSERT_FALSE(other.ok());
  EXPECT_THAT(other.error().message, HasSubstr("--out"));
}

TEST_F(Folder, WhatIsKnownIsNotPlayedAgainAndThreadsChangeNothing) {
  const Axes axes = read_axes(kSmall).value();
  Plan plan{folder_, axes.digest, cells_of(axes), {"fcfs", "unified"}, {1, 2}, 3};
  ASSERT_TRUE(Ledger::open(folder_ / "knees.jsonl", {{"axes", axes.digest}})
                  ->add(knee_name(plan.cells[0]), {{"rate_rps", 4.0}})
                  .ok());
  std::size_t calls = 0;
  const GridProgress count = [&](double, const std::string&) { ++calls; };
  const auto first = play_grid(plan, count);
  ASSERT_TRUE(first.ok()) << first.error().message;
  EXPECT_EQ(calls, 4u) << "two policies on two cells";
  EXPECT_EQ((*first)[1].at("fcfs").mean.joint_attainment, 1);
  const auto again = play_grid(plan, count);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(calls, 4u) << "known cells were played again";
  EXPECT_EQ((*again)[0].at("unified").mean.ttft_p99_s, (*first)[0].at("unified").mean.ttft_p99_s);
  plan.seeds = {6, 2};
  plan.jobs = 1;
  ASSERT_TRUE(play_grid(plan, count).ok());
  EXPECT_EQ(calls, 8u) << "other seeds are other results";
  EXPECT_THAT(text("seeds-6-7.jsonl"), HasSubstr("c002 unified"));
}

TEST_F(Folder, ClassesAreKeptWithTheTightestAlone) {
  const Axes axes = read_axes(kClasses).value();
  Plan plan{folder_, axes.digest, cells_of(axes), {"fcfs", "lvf"}, {1, 2}, 1, "lvf"};
  auto knees = Ledger::open(folder_ / "knees.jsonl", {{"axes", axes.digest}});
  for (const Cell& cell : plan.cells) {
    ASSERT_TRUE(knees->add(knee_name(cell), {{"rate_rps", 2.0}}).ok());
    ASSERT_TRUE(knees->add(tightest_knee_name(cell), {{"rate_rps", 1.0}}).ok());
  }
  std::size_t calls = 0;
  const GridProgress count = [&](double, const std::string&) { ++calls; };
  for (int i = 0; i < 2; ++i) {
    const auto played = play_grid(plan, count);
    ASSERT_TRUE(played.ok()) << played.error().message;
    EXPECT_EQ(calls, 6u) << "two policies on two cells, one of them alone, too";
    for (std::size_t c = 0; c < 2; ++c) {
      const Played& ours = (*played)[c].at("lvf");
      EXPECT_FALSE((*played)[c].at("fcfs").alone);
      ASSERT_EQ(ours.classes.size(), 3u);
      EXPECT_EQ(ours.classes[0].name, "ttft 1 s, tbt 0.1 s");
      EXPECT_EQ(ours.classes[2].name, "ttft 120 s, tbt 1 s");
      ASSERT_TRUE(ours.alone);
      EXPECT_EQ(ours.alone->mean.requests, ours.classes[0].mean.requests);
      const bool apart = plan.cells[c].apart;
      EXPECT_NEAR(ours.alone->load, apart ? 0.4 : 0.2, 1e-9);
    }
  }
}

Played played(double joint, double held = 0) {
  Played out;
  out.mean.joint_attainment = joint;
  out.mean.held_back_share = held;
  return out;
}

TEST(GridVerdict, NamesWhereAPolicyIsBehindAndWhatDiffers) {
  Axes axes = read_axes(kSmall).value();
  axes.cells = 3;
  axes.load = {1};
  auto cells = cells_of(axes);
  cells[2].load = 2;
  const PlayedCell rows[] = {
      {{"fcfs", played(0.9)}, {"lvf", played(0.8)}, {"unified", played(0.6, 0.5)}},
      {{"fcfs", played(0.5)}, {"unified", played(0.9)}},
      {{"fcfs", played(0.51)}, {"unified", played(0.5)}}};
  std::vector<Standing> standings;
  for (std::size_t i = 0; i < 3; ++i)
    standings.push_back(standing_of(cells[i], rows[i], "unified"));
  const Verdict verdict = verdict_of(standings, 0.02);
  EXPECT_NEAR(verdict.worst, 0.3, 1e-12);
  EXPECT_NEAR(verdict.mean_lead, 0.05, 1e-12) << "the cell at twice the knee does not count";
  const auto json = json_of(verdict);
  EXPECT_EQ(json["cells"], 3);
  ASSERT_EQ(json["behind"].size(), 1u);
  EXPECT_EQ(json["behind"][0]["cell"], "c001");
  EXPECT_EQ(json["behind"][0]["best_policy"], "fcfs");
  EXPECT_EQ(json["behind"][0]["cause"]["held_back_share"][0], 0.5);
  EXPECT_EQ(verdict_of(standings, 0).behind.size(), 2u);
  const std::string html = html_of(page_of(verdict, {rows[0], rows[1], rows[2]}, "unified", 0.02));
  EXPECT_THAT(html, HasSubstr("held_back_share 0.5 (0)"));
  EXPECT_THAT(html, HasSubstr("<svg"));
}

TEST(GridVerdict, NamesWhereFewerTokensAreMadeAndFirstOnesComeLate) {
  Axes axes = read_axes(kSmall).value();
  axes.cells = 3;
  axes.load = {1};
  auto cells = cells_of(axes);
  cells[2].load = 1.1;
  const auto with = [](double tokens, double ttft, double long_ttft) {
    Played out = played(0.5);
    out.mean.throughput_tps = tokens;
    out.mean.ttft_p99_s = ttft;
    out.mean.long_ttft_p99_s = long_ttft;
    return out;
  };
  const PlayedCell rows[] = {
      {{"fcfs", with(100, 4, 8)}, {"lvf", with(90, 5, 9)}, {"unified", with(96.9, 5, 10)}},
      {{"fcfs", with(100, 4, 8)}, {"lvf", with(90, 0, 0)}, {"unified", with(97.1, 4, 10.1)}},
      {{"fcfs", with(100, 4, 8)}, {"unified", with(100, 9, 18)}}};
  std::vector<Standing> standings;
  for (std::size_t i = 0; i < 3; ++i) {
    standings.push_back(standing_of(cells[i], rows[i], "unified"));
  }
  const auto json = json_of(verdict_of(standings, 0.02));
  EXPECT_EQ(json["slow"], Ledger::Json::array({"c001"}));
  EXPECT_EQ(json["late"], Ledger::Json::array({"c002"}))
      << "above the knee somebody is late; whoever has no first token is nobody's best";
}

TEST(GridVerdict, NamesCellsThatTellNothing) {
  const auto cells = cells_of(read_axes(kSmall).value());
  const PlayedCell same = {{"fcfs", played(0.4)}, {"lvf", played(0.4)}, {"unified", played(0.4)}};
  PlayedCell other = same;
  other["lvf"] = played(0.3);
  const Verdict verdict = verdict_of(
      {standing_of(cells[0], same, "unified"), standing_of(cells[1], other, "unified")}, 0.02);
  EXPECT_EQ(json_of(verdict)["alike"], Ledger::Json::array({"c001"}));
  PlayedCell stuck = {{"fcfs", Played{{}, "stuck"}}, {"unified", Played{{}, "stuck"}}};
  EXPECT_FALSE(standing_of(cells[0], stuck, "unified").alike) << "faults are to be seen";
}

TEST(GridVerdict, APolicyThatGotStuckServesNobody) {
  const auto cells = cells_of(read_axes(kSmall).value());
  PlayedCell row = {{"fcfs", played(0.4)}, {"unified", Played{{}, "grants nothing any more"}}};
  const Standing standing = standing_of(cells[0], row, "unified");
  EXPECT_DOUBLE_EQ(standing.lead(), -0.4);
  EXPECT_THAT(cause_text(standing.cause), HasSubstr("grants nothing"));
}

/// Joint attainments of the tightest class and of a loose one.
Played of_classes(double tight, double loose, double tokens = 100) {
  Played out;
  out.mean.throughput_tps = tokens;
  out.classes = {{"tight", {}}, {"loose", {}}};
  out.classes[0].mean.joint_attainment = tight;
  out.classes[1].mean.joint_attainment = loose;
  return out;
}

Played with_alone(Played played, double joint, double load, const char* fault = "") {
  played.alone = PlayedAlone{{}, fault, load};
  played.alone->mean.joint_attainment = joint;
  return played;
}

TEST(GridClasses, AreHeldAgainstBeingAloneAndAgainstWhoKeepsTheTightest) {
  const auto cells = cells_of(read_axes(kClasses).value());
  const auto standing = [&](const Played& ours, const Played& fcfs, const Played& lvf) {
    return class_standing_of(cells[0], {{"fcfs", fcfs}, {"lvf", lvf}, {"unified", ours}}, "unified",
                             0.02);
  };
  const Played greedy = of_classes(0.2, 1), kept = of_classes(0.89, 0.7);
  const auto good = standing(with_alone(of_classes(0.89, 0.66), 0.9, 0.9), greedy, kept);
  EXPECT_TRUE(good.fits());
  EXPECT_FALSE(good.missed()) << json_of({good}).dump();
  EXPECT_EQ(good.loose[0].best_policy, "lvf") << "fcfs gives the loose more, but not the tight";
  const auto nobody = standing(with_alone(of_classes(0.89, 0.66), 0.9, 0.9), greedy, greedy);
  EXPECT_TRUE(nobody.loose_behind()) << "where nobody keeps the tight, fcfs is the measure";
  EXPECT_EQ(nobody.loose[0].best_policy, "fcfs");
  const auto late = standing(with_alone(of_classes(0.87, 0.64, 96), 0.9, 0.91), greedy, kept);
  EXPECT_FALSE(late.fits());
  const auto json = json_of({good, nobody, late});
  EXPECT_EQ(json["cells"][2]["missed"], Ledger::Json::array({"tight", "slow", "loose"}));
  EXPECT_EQ(json["fits"]["cells"], 2);
  EXPECT_EQ(json["fits"]["missed"], 1);
  EXPECT_EQ(json["others"]["tight"], 1);
  EXPECT_TRUE(json["cells"][1]["cause"].contains("loose: loose"));
}

TEST(GridClasses, APolicyThatGotStuckKeepsNobody) {
  const auto cells = cells_of(read_axes(kClasses).value());
  const PlayedCell row = {{"fcfs", of_classes(0.1, 0.1)},
                          {"unified", with_alone(of_classes(1, 1), 0, 0.5, "stuck")}};
  const auto standing = class_standing_of(cells[0], row, "unified", 0.02);
  EXPECT_TRUE(standing.missed());
  EXPECT_EQ(standing.cause["fault"], "stuck");
}

}  // namespace
}  // namespace kvd::sim::grid
