#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "tests/sim/program_test.hpp"

/// Tests kvd-lab as it is called.
namespace kvd::sim {
namespace {

using Json = nlohmann::ordered_json;

class KvdLab : public ProgramTest {
 protected:
  KvdLab() : ProgramTest(KVD_LAB) {}
};

TEST_F(KvdLab, CachePrintsEveryPolicyAtEveryCapacity) {
  const std::string cache = "cache --profile gh200-qwen2.5-32b --requests 400 ";
  const Answer answer = call(cache + "--capacity 2,20 --policies lru,default --seeds 2 --json");
  ASSERT_EQ(answer.status, 0) << answer.err;
  const Json json = Json::parse(answer.out);
  ASSERT_EQ(json["points"].size(), 2u);
  for (const Json& point : json["points"]) {
    for (const char* policy : {"lru", "default"}) {
      EXPECT_GT(point["policies"][policy]["saved"], 0) << policy;
      EXPECT_LE(point["policies"][policy]["found"], point["at_most"]["found"]) << policy;
    }
  }
  const Answer table = call(cache);
  EXPECT_NE(table.out.find("at most"), std::string::npos);
  EXPECT_NE(table.out.find("s3fifo"), std::string::npos);
}

TEST_F(KvdLab, CacheSaysWhatItCannotPlay) {
  const std::string cache = "cache --profile gh200-qwen2.5-32b --requests 20 ";
  for (const auto& [arguments, words] :
       {std::pair{"--policies best", "default, lru, s3fifo, sieve"},
        std::pair{"--capacity 0", "above 0"}, std::pair{"--trace gen:sharegpt", "take gen:chat"},
        std::pair{"--seeds 0", "from 1 to"}}) {
    const Answer answer = call(cache + arguments);
    EXPECT_EQ(answer.status, 2) << arguments;
    EXPECT_NE(answer.err.find(words), std::string::npos) << answer.err;
    EXPECT_TRUE(answer.out.empty());
  }
}

TEST_F(KvdLab, TheGridSaysByItsStatusWhetherAPolicyIsBehind) {
  const std::string axes = file("axes.json", R"({"seed": 1, "cells": 2,
    "machines": [["gh200-qwen2.5-32b"]],
    "lengths": [{"source": "gen:fixed-2000-20", "duration_s": 4, "ttft_s": 1, "tbt_s": 0.1}],
    "classes": [{"name": "one"}], "cv": [1], "max_tokens": ["exact"], "load": [0.5],
    "hbm": [1], "dram": [1]})");
  const std::string grid = "grid --policy fcfs --json --jobs 2 --cells 1 --axes " + axes +
                           " --out " + (folder_ / "grid").string();
  const Answer answer = call(grid + " --tolerance 1");
  ASSERT_EQ(answer.status, 0) << answer.err;
  const Json json = Json::parse(answer.out);
  EXPECT_EQ(json["cells"], 1);
  EXPECT_TRUE(json["behind"].empty());
  EXPECT_TRUE(json["policies"][0].contains("second_gap_share"));
  EXPECT_FALSE(json.contains("classes")) << "one class of goals";
  EXPECT_NE(read(folder_ / "grid" / "report" / "index.html").find("<svg"), std::string::npos);
  EXPECT_EQ(call(grid + " --tolerance 1").out, answer.out);
  EXPECT_EQ(call(grid + " --ground goals").status, 2) << "axes are a ground of their own";
  EXPECT_EQ(call(grid + " --tolerance 2").status, 2);
  EXPECT_EQ(call(grid + " --jobs 0").status, 2);
  EXPECT_EQ(call(grid + " --seeds 6").status, 2) << "the sixth is kept apart";
  EXPECT_EQ(call("grid --policy lru").status, 2);
  EXPECT_EQ(call(grid + " --only c099").status, 2);
  EXPECT_EQ(call(grid + " --against lru").status, 2);
}

TEST_F(KvdLab, TheGridJudgesClassesOfGoals) {
  const std::string axes = file("axes.json", R"({"seed": 1, "cells": 1, "by_class": true,
    "machines": [["gh200-qwen2.5-32b"]],
    "lengths": [{"source": "gen:fixed-2000-20", "duration_s": 4, "ttft_s": 1, "tbt_s": 0.1}],
    "classes": [{"name": "two", "parts": [{"share": 0.5, "ttft": 6}]}], "cv": [1],
    "max_tokens": ["exact"], "load": [0.5], "hbm": [1], "dram": [1]})");
  const std::string grid = "grid --policy lvf --against fcfs --seeds 1 --axes " + axes + " --out " +
                           (folder_ / "grid").string();
  const Answer answer = call(grid + " --json --tolerance 1");
  ASSERT_EQ(answer.status, 0) << answer.err;
  const Json classes = Json::parse(answer.out)["classes"];
  EXPECT_EQ(classes["fits"]["cells"], 1);
  EXPECT_EQ(classes["cells"][0]["loose"][0]["class"], "ttft 6 s, tbt 0.1 s");
  const Answer text = call(grid);
  for (const char* word : {"comes at most at 0.9", "gap>1s", "lvf"}) {
    EXPECT_NE(text.out.find(word), std::string::npos) << word << "\n" << text.out;
  }
}

/// Options that make the example a short run.
std::string shorter(const std::string& command) {
  if (command.starts_with("cache")) return " --requests 200";
  return command.starts_with("reproduce") ? " --seeds 1" : "";
}

TEST_F(KvdLab, TheExamplesOfItsHelpRun) {
  std::istringstream help(call("--help").out);
  int examples = 0;
  for (std::string line; std::getline(help, line);) {
    if (!line.starts_with("  kvd-lab ")) continue;
    const std::string command = line.substr(10);
    ++examples;
    if (command.starts_with("grid")) continue;  // it takes minutes, and has tests of its own
    const Answer answer = call(command + shorter(command));
    EXPECT_EQ(answer.status, 0) << command << ": " << answer.err;
  }
  EXPECT_EQ(examples, 3);
}

}  // namespace
}  // namespace kvd::sim
