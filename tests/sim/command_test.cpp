#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "tests/sim/program_test.hpp"

/// kvd-sim as users call it.
namespace kvd::sim {
namespace {

using Json = nlohmann::ordered_json;

class KvdSim : public ProgramTest {
 protected:
  KvdSim() : ProgramTest(KVD_SIM) {}
};

/// Under AddressSanitizer a virtual second takes a real one.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kSlow = true;
constexpr const char* kSmall =
    " --profile gh200-qwen2.5-32b --trace gen:sharegpt --rate 8 --duration 2";
#else
constexpr bool kSlow = false;
constexpr const char* kSmall =
    " --profile gh200-qwen2.5-32b --trace gen:sharegpt --rate 8 --duration 5";
#endif

TEST_F(KvdSim, TheSameSeedGivesTheSameBytes) {
  const Answer first = call(std::string("run --policy unified --json") + kSmall);
  const Answer again = call(std::string("run --policy unified --json") + kSmall);
  const Answer other = call(std::string("run --policy unified --json --seed 2") + kSmall);
  ASSERT_EQ(first.status, 0) << first.err;
  EXPECT_EQ(first.out, again.out);
  EXPECT_NE(first.out, other.out);
  const Json json = Json::parse(first.out);
  EXPECT_EQ(json["metrics"]["requests"], json["metrics"]["finished"]);
  EXPECT_GT(json["metrics"]["iterations"], 0);
  EXPECT_TRUE(first.err.empty()) << first.err;
}

TEST_F(KvdSim, CompareAndSweepAndKneePrintWhatTheyPromise) {
  const Answer compare =
      call(std::string("compare --policies fcfs,lvf --seeds 2 --json --progress") + kSmall);
  ASSERT_EQ(compare.status, 0) << compare.err;
  const Json compared = Json::parse(compare.out);
  ASSERT_EQ(compared["policies"].size(), 2u);
  EXPECT_EQ(compared["policies"][1]["policy"], "lvf");
  EXPECT_EQ(compared["policies"][1]["spread"]["ttft_mean_s"].size(), 2u);

  const Answer sweep = call(
      std::string("sweep --over prefill-tokens --values 512,4096 --policies fcfs --json") + kSmall);
  ASSERT_EQ(sweep.status, 0) << sweep.err;
  const Json swept = Json::parse(sweep.out);
  ASSERT_EQ(swept["points"].size(), 2u);
  EXPECT_EQ(swept["points"][1]["value"], "4096");

  const Answer knee = call(
      "knee --json --profile gh200-qwen2.5-32b --trace gen:fixed-2000-20 --duration 5 --rate 8 "
      "--precision 0.2 --ttft 1");
  ASSERT_EQ(knee.status, 0) << knee.err;
  const Json found = Json::parse(knee.out);
  EXPECT_EQ(found["policy"], "fcfs");
  EXPECT_EQ(found["seeds"], 5);
  EXPECT_GT(found["points"][0]["throughput_tps"], 0);
  EXPECT_GT(found["knee_rps"], 0);
  for (const Json& point : found["points"]) {
    EXPECT_EQ(point["ttft_attainment"] >= 0.99, point["rate_rps"] <= found["knee_rps"]);
  }
}

// Two models on one pool, each with what it always has; a tenth of the requests is strict.
TEST_F(KvdSim, SaysHowEachEngineAndEachClassOfGoalsFared) {
  const std::string csv = (folder_ / "requests.csv").string();
  const std::string two =
      " --profile gh200-llama3-8b --trace gen:fixed-2000-20 --rate 20 --guarantee 4GiB"
      " --profile gh200-qwen2.5-32b --trace gen:fixed-1000-20 --rate 2 --guarantee 4GiB"
      " --hbm 12GiB --duration 4 --class 2:0.06:0.3 --overload ttft";
  const Answer run = call("run --policy unified --json --requests-csv " + csv + two);
  ASSERT_EQ(run.status, 0) << run.err;
  const Json json = Json::parse(run.out);
  ASSERT_EQ(json["parts"].size(), 4u) << run.out;
  EXPECT_EQ(json["parts"][0]["part"], "engine 1");
  EXPECT_EQ(json["parts"][2]["part"], "ttft 2 s, tbt 0.06 s");
  EXPECT_EQ(json["parts"][0]["requests"].get<double>() + json["parts"][1]["requests"].get<double>(),
            json["metrics"]["requests"].get<double>());
  EXPECT_FALSE(json["parts"][0].contains("iterations"));
  const std::string lines = read(csv);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'),
            json["metrics"]["requests"].get<double>() + 1);
  const Answer table = call("compare --policies fcfs,unified --seeds 2" + two);
  ASSERT_EQ(table.status, 0) << table.err;
  EXPECT_NE(table.out.find("\n  engine 2"), std::string::npos) << table.out;
  for (const char* wrong :
       {" --guarantee 4GiB", " --partition", " --class 2:0.06", " --class 2:0.06:0.8",
        " --class 0:0.06:0.1", " --overload most", " --requests-csv /nowhere/at/all"}) {
    EXPECT_EQ(call("run --policy unified" + two + wrong).status, 2) << wrong;
  }
}

// A chat engine beside a batch engine, of which a part is urgent: three classes.
TEST_F(KvdSim, EnginesHaveGoalsOfTheirOwn) {
  const std::string engine = " --profile gh200-llama3-8b --trace gen:fixed-500-20 --rate 20";
  const std::string two = engine + engine + " --duration 4 --one-device --goals 5:0.1";
  const Answer answer =
      call("compare --policies fcfs --json" + two + " --goals 600:1 --class 30:0.2:0.3");
  ASSERT_EQ(answer.status, 0) << answer.err;
  const Json json = Json::parse(answer.out);
  std::vector<std::string> parts;
  for (const Json& part : json["policies"][0]["parts"]) {
    parts.push_back(part["part"]);
    EXPECT_TRUE(part.contains("second_gap_share"));
  }
  EXPECT_EQ(parts, (std::vector<std::string>{"engine 1", "engine 2", "ttft 5 s, tbt 0.1 s",
                                             "ttft 30 s, tbt 0.2 s", "ttft 600 s, tbt 1 s"}));
  for (const char* wrong : {"", " --goals 5", " --goals 5:0.1:1", " --goals 0:1"}) {
    const Answer refused = call("run --policy fcfs" + two + wrong);
    EXPECT_EQ(refused.status, 2) << wrong;
    EXPECT_FALSE(refused.err.empty()) << wrong;
  }
}

// A class whose neighbour is overloaded fares as it would with its guaranteed share alone.
TEST_F(KvdSim, AGuaranteeShields) {
  const std::string model = " --profile h100-pcie-llama3-8b --trace gen:sharegpt";
  const auto joint = [&](const std::string& engines) {
    const Answer answer = call("run --policy unified --json --duration 8" + engines);
    EXPECT_EQ(answer.status, 0) << answer.err;
    const Json json = Json::parse(answer.out);
    const Json& of = json.contains("parts") ? json["parts"][0] : json["metrics"];
    return of["joint_attainment"].get<double>();
  };
  const std::string guarantee = " --guarantee 1GiB";
  const std::string both = " --hbm 2GiB --dram 2GiB";
  const double alone = joint(model + " --rate 6 --hbm 1GiB --dram 1GiB");
  EXPECT_GE(joint(model + " --rate 6" + guarantee + model + " --rate 30" + guarantee + both),
            alone - 0.02);
  EXPECT_LT(joint(model + " --rate 6" + model + " --rate 30" + both), alone - 0.2)
      << "without a guarantee nothing shields it";
}

TEST_F(KvdSim, ASweepDrawsAPictureOfOneOfItsFigures) {
  const std::string picture = (folder_ / "sweep.svg").string();
  const std::string sweep =
      std::string("sweep --over hbm --values 60GiB,64GiB --policies fcfs,lvf") + kSmall;
  const Answer answer = call(sweep + " --figure ttft_p99_s --svg " + picture);
  ASSERT_EQ(answer.status, 0) << answer.err;
  EXPECT_NE(answer.out.find("hbm = 64GiB"), std::string::npos) << "the tables are printed, too";
  const std::string svg = read(picture);
  for (const char* word : {">ttft_p99_s</text>", ">fcfs</text>", ">lvf</text>", ">60GiB</text>",
                           "Simulated: gen:sharegpt on gh200-qwen2.5-32b, seed 1", "</svg>"}) {
    EXPECT_NE(svg.find(word), std::string::npos) << word;
  }
  EXPECT_EQ(call(sweep + " --svg /nowhere/sweep.svg").status, 2);
}

TEST_F(KvdSim, GuardsGoWithEveryPolicyThatIsNamed) {
  const std::string two = std::string("compare --json --policies fcfs,lvf") + kSmall;
  const Answer answer = call(two + " --guards");
  ASSERT_EQ(answer.status, 0) << answer.err;
  const Json json = Json::parse(answer.out);
  EXPECT_EQ(json["policies"][0]["policy"], "fcfs+guards");
  EXPECT_EQ(json["policies"][1]["policy"], "lvf+guards");
}

TEST_F(KvdSim, EnginesShareAPoolOrGetParts) {
  const std::string two =
      " --profile gh200-llama3-8b --profile gh200-llama3-8b --trace gen:sharegpt "
      "--trace gen:azure --rate 6 --rate 2 --duration 4 --one-device --check --policy lvf";
  const Answer shared = call("run --json" + two);
  const Answer parts = call("run --json --partition" + two);
  ASSERT_EQ(shared.status, 0) << shared.err;
  ASSERT_EQ(parts.status, 0) << parts.err;
  EXPECT_EQ(Json::parse(shared.out)["metrics"]["requests"],
            Json::parse(parts.out)["metrics"]["requests"]);
}

TEST_F(KvdSim, EnginesThatPlaceLendEachOtherHbmOrGetParts) {
  const std::string two =
      " --json --engines-place --profile gh200-llama3-8b --profile gh200-llama3-8b"
      " --trace gen:sharegpt --trace gen:azure --rate 6 --rate 2 --duration 4 --until 20 --check";
  const auto sized = [&](const char* words) { return call("run" + two + words); };
  const Answer shared = sized(" --hbm 2GiB"), parts = sized(" --hbm 2GiB --partition");
  ASSERT_EQ(shared.status, 0) << shared.err;
  ASSERT_EQ(parts.status, 0) << parts.err;
  EXPECT_NE(shared.out, parts.out);
  EXPECT_EQ(sized(" --hbm 2GiB --policy stock").out,
            sized(" --hbm 2GiB --policy stock --partition").out);
  const Answer few = sized(" --hbm 16MiB --dram 1GiB");
  EXPECT_NE(few.status, 0);
  EXPECT_NE(few.err.find("--partition"), std::string::npos) << few.err;
}

TEST_F(KvdSim, TablesNameWhatTheyShow) {
  const Answer answer = call(std::string("compare --policies fcfs --seeds 2") + kSmall);
  ASSERT_EQ(answer.status, 0) << answer.err;
  for (const char* word :
       {"policy", "ttft ok", "joint", "fcfs", "least", "greatest", "seed 1 to 2", "missed", "gap s",
        "gap>1s", "long ok", "ttft p50", "max", "long p99", "tok/s", "held", "layers", "blocks"}) {
    EXPECT_NE(answer.out.find(word), std::string::npos) << word;
  }
  std::istringstream lines(answer.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
}

TEST_F(KvdSim, RunAndKneeHaveAPolicyOfTheirOwnWhereNoneIsNamed) {
  const Answer run = call(std::string("run --json") + kSmall);
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(Json::parse(run.out)["policy"], "unified");
  const Answer other = call(std::string("run --json --policy lvf") + kSmall);
  EXPECT_EQ(Json::parse(other.out)["policy"], "lvf");
}

struct Bad {
  const char* arguments;
  const char* says;
};

TEST_F(KvdSim, BadInputIsRefusedWithoutAReport) {
  const Bad kAll[] = {
      {"run --policy lru --profile gh200-qwen2.5-32b", "no policy \"lru\""},
      {"run --profile gh300", "gh300"},
      {"run --profile gh200-qwen2.5-32b --trace gen:nothing", "nothing"},
      {"run --profile gh200-qwen2.5-32b --trace /nowhere.csv", "/nowhere.csv"},
      {"run --profile gh200-qwen2.5-32b --rate 0", "rate"},
      {"run --profile gh200-qwen2.5-32b --hbm 1MiB", "does not fit"},
      {"run --profile gh200-qwen2.5-32b --hbm much", "no size"},
      {"run --profile gh200-qwen2.5-32b --tbt -1", "--tbt"},
      {"run --profile gh200-qwen2.5-32b --rate 1e-9 --duration 1", "no request"},
      {"run --profile gh200-qwen2.5-32b --profile gh200-llama3-8b", "--trace"},
      {"compare --profile gh200-qwen2.5-32b", "--policies"},
      {"sweep --profile gh200-qwen2.5-32b --policies fcfs --over moon --values 1", "moon"},
      {"sweep --profile gh200-qwen2.5-32b --policies fcfs --over alpha --values x", "no number"},
      {"sweep --profile gh200-qwen2.5-32b --policies fcfs --over alpha --values 1 --figure luck",
       "no figure"},
      {"knee --profile gh200-qwen2.5-32b --threshold 2", "threshold"},
      {"run --profile gh200-qwen2.5-32b --length-error -1", "error of predicted lengths"},
      {"run --profile gh200-qwen2.5-32b --max-tokens much", "--max-tokens"},
      {"run --profile gh200-qwen2.5-32b --max-tokens 0", "--max-tokens"},
      {"run --profile gh200-qwen2.5-32b --rate nan", "rate"},
      {"run --profile gh200-qwen2.5-32b --rate inf", "rate"},
      {"run --profile gh200-qwen2.5-32b --duration nan", "duration"},
      {"run --profile gh200-qwen2.5-32b --prefill-tokens -5", "prefill"},
      {"run --profile gh200-qwen2.5-32b --alpha nan", "alpha"},
      {"run --profile gh200-qwen2.5-32b --link nan", "--link"},
      {"run --profile gh200-qwen2.5-32b --until nan", "--until"},
      {"run --profile gh200-qwen2.5-32b --hbm 1e300GiB", "no size"},
      {"run --profile gh200-qwen2.5-32b --prefill-tokens 99999999999999999999", "prefill"},
      {"run --profile gh200-qwen2.5-32b --seed -1", "--seed"},
      {"compare --profile gh200-qwen2.5-32b --policies fcfs --seeds 0", "--seeds"},
      {"compare --profile gh200-qwen2.5-32b --policies fcfs --seeds -1", "--seeds"},
      {"compare --profile gh200-qwen2.5-32b --policies fcfs --seeds 99999999", "--seeds"},
      {"sweep --profile gh200-qwen2.5-32b --policies fcfs --over prefill-tokens --values 1e30",
       "prefill"},
      {"sweep --profile gh200-qwen2.5-32b --policies fcfs --over rate --values nan", "no number"},
      {"sweep --profile gh200-qwen2.5-32b --policies fcfs --over hbm --values ''", "no size"},
      {"dance", ""},
  };
  for (const Bad& bad : kAll) {
    for (const char* json : {"", " --json"}) {
      const Answer answer = call(bad.arguments + std::string(json));
      EXPECT_EQ(answer.status, 2) << bad.arguments << ": " << answer.err;
      EXPECT_TRUE(answer.out.empty()) << bad.arguments << ": " << answer.out;
      EXPECT_FALSE(answer.err.empty()) << bad.arguments;
      EXPECT_NE(answer.err.find(bad.says), std::string::npos)
          << bad.arguments << ": " << answer.err;
    }
  }
}

TEST_F(KvdSim, AMalformedTraceIsRefusedByLine) {
  const std::string trace =
      file("bad.csv",
           "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,10,5\n"
           "2023-11-16 18:15:47.0000000,ten,5\n");
  const Answer answer = call("run --profile gh200-qwen2.5-32b --trace " + trace);
  EXPECT_EQ(answer.status, 2);
  EXPECT_TRUE(answer.out.empty());
  EXPECT_NE(answer.err.find('3'), std::string::npos) << answer.err;
}

TEST_F(KvdSim, AForeignTraceIsNamedByTheKeysItLacks) {
  const std::string trace = file("other.jsonl", "{\"timestamp\": 1, \"prompt_tokens\": 5}\n");
  const Answer answer = call("run --profile gh200-qwen2.5-32b " + trace);
  EXPECT_EQ(answer.status, 2);
  EXPECT_NE(answer.err.find("lacks input_length, output_length"), std::string::npos) << answer.err;
}

TEST_F(KvdSim, ATraceMayFollowTheOptions) {
  const Answer answer =
      call("run --json --duration 2 --rate 2 --profile gh200-qwen2.5-32b gen:azure");
  EXPECT_EQ(answer.status, 0) << answer.err;
}

/// The options that make the example a short run.
std::string shorter(const std::string& command) {
  if (command.starts_with("knee")) return " --requests 400 --precision 0.5 --seeds 1";
  return " --requests 20";
}

TEST_F(KvdSim, TheExamplesOfItsHelpRun) {
  std::istringstream help(call("--help").out);
  int examples = 0;
  for (std::string line, command; std::getline(help, line);) {
    if (line.starts_with("    --") && !command.empty()) {
      command += line;
    } else if (line.starts_with("  kvd-sim ")) {
      command = line.substr(10);
    } else {
      continue;
    }
    if (command.ends_with('\\')) {
      command.pop_back();
      continue;
    }
    ++examples;
    if (kSlow && command.starts_with("knee")) continue;
    const Answer answer = call(command + shorter(command));
    EXPECT_EQ(answer.status, 0) << command << ": " << answer.err;
  }
  EXPECT_EQ(examples, 4);
}

TEST_F(KvdSim, HelpNamesPoliciesProfilesAndWorkloads) {
  const Answer answer = call("run --help");
  EXPECT_EQ(answer.status, 0);
  for (const char* word : {"--policy", "gh200-qwen2.5-32b", "gen:sharegpt", "--prefill-tokens"}) {
    EXPECT_NE(answer.out.find(word), std::string::npos) << word;
  }
}

}  // namespace
}  // namespace kvd::sim
