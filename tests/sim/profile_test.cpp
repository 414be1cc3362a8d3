#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "kvd/sim/profile/calibrate.hpp"
#include "kvd/sim/profile/profile_commands.hpp"
#include "kvd/sim/run/exit_status.hpp"
#include "kvd/sim/run/inputs.hpp"

namespace kvd::sim {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Toml, ReadsTablesValuesAndComments) {
  const auto entries = read_toml(
      "# a file\n\nname = \"a \\\"b\\\" # c\"   # quoted\n[link]\nrate = 7.62e9 # measured\r\n"
      "count = 1_000\nduplex = true\nunit = \"µ#s\" # mean\n",
      "f");
  ASSERT_TRUE(entries.ok()) << entries.error().message;
  ASSERT_EQ(entries->size(), 5U);
  EXPECT_EQ(std::get<std::string>((*entries)[0].value), "a \"b\" # c");
  EXPECT_EQ((*entries)[0].comment, "quoted");
  EXPECT_EQ((*entries)[1].key, "link.rate");
  EXPECT_EQ(std::get<double>((*entries)[1].value), 7.62e9);
  EXPECT_EQ((*entries)[1].comment, "measured");
  EXPECT_EQ(std::get<double>((*entries)[2].value), 1000);
  EXPECT_TRUE(std::get<bool>((*entries)[3].value));
  EXPECT_EQ(std::get<std::string>((*entries)[4].value), "µ#s");
  EXPECT_EQ((*entries)[4].comment, "mean");
}

TEST(Toml, RefusesTheRestWithItsLine) {
  for (const char* bad :
       {"a", "a =", "a = b", "a = 1 2", "a = \"b", "a = \"b\" c", "a = nan", "a = inf", "a = 1__0",
        "a = _1", "a b = 1", "[a", "[a] b", "a = 1\na = 2", "[a]\n[a]", "a = 1979-05-27"}) {
    const auto entries = read_toml("# one\n" + std::string(bad) + "\n", "f");
    ASSERT_FALSE(entries.ok()) << bad;
    EXPECT_THAT(entries.error().message, HasSubstr("f:")) << bad;
  }
}

TEST(Presets, ReadAndEveryFigureSaysWhereItIsFrom) {
  for (const Preset& preset : presets()) {
    const auto document = read_profile(preset.toml, preset.name);
    ASSERT_TRUE(document.ok()) << document.error().message;
    EXPECT_EQ(document->profile.name, preset.name);
    for (const TomlEntry& entry : document->entries) {
      if (!std::holds_alternative<double>(entry.value)) continue;
      EXPECT_NE(entry.comment, "") << preset.name << " " << entry.key;
    }
    EXPECT_NE(document->profile.ours, "");
  }
}

double decode_seconds(const char* preset, std::int64_t requests, std::int64_t context) {
  const auto profile = load_profile(preset);
  return iteration_time(*profile, {.decoding = requests, .context_tokens = context}).count();
}

TEST(Presets, GiveThePublishedFigures) {
  // OrbitFlow's SLO at scale 1: a decode step over 16,384 tokens.
  EXPECT_NEAR(decode_seconds("a5000-llama3-8b", 4, 16384), 0.0653, 1e-4);
  // The profile's link takes 8.6 us a layer-block.
  const auto a5000 = load_profile("a5000-llama3-8b");
  EXPECT_NEAR(static_cast<double>(a5000->shape.slot_bytes().value) / a5000->link.h2d_bytes_s,
              8.6e-6, 2e-8);
  EXPECT_EQ(a5000->hbm.value / 131072, 16384) << "tokens that HBM holds";
  // SuperInfer's block of all layers has 4 MiB.
  const auto gh200 = load_profile("gh200-qwen2.5-32b");
  EXPECT_EQ(gh200->shape.slot_bytes() * std::int64_t{gh200->shape.groups()}, 4 * kMiB);
}

// An engine that is paced: one iteration that decodes and prefills is one wait, not two.
TEST(UserProfile, AnIterationTakesAtLeastItsLeast) {
  Profile profile = *load_profile("a5000-llama3-8b");
  const Batch both{.decoding = 4, .context_tokens = 16384, .prompt_tokens = 256};
  const Seconds free = iteration_time(profile, both);
  profile.iteration.least = free * 2;
  EXPECT_EQ(iteration_time(profile, both), free * 2);
  EXPECT_EQ(iteration_time(profile, {.prompt_tokens = 1}), free * 2);
  profile.iteration.least = free / 2;
  EXPECT_EQ(iteration_time(profile, both), free);
}

TEST(UserProfile, APrintedPresetReadsBackTheSame) {
  for (const Preset& preset : presets()) {
    std::ostringstream out;
    std::ostringstream err;
    ASSERT_EQ(profiles_command({.name = preset.name, .json = false}, out, err), kDone);
    const auto again = read_profile(out.str(), "again");
    ASSERT_TRUE(again.ok()) << again.error().message;
    EXPECT_EQ(profile_toml(again->entries), out.str());
    EXPECT_EQ(iteration_time(again->profile, {.decoding = 3, .context_tokens = 999}),
              iteration_time(*load_profile(preset.name), {.decoding = 3, .context_tokens = 999}));
  }
}

std::string edited(const std::string& from, const std::string& to) {
  std::string text = presets().front().toml;
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(UserProfile, FaultsNameTheLineAndTheKey) {
  const auto message = [](const std::string& text) {
    const auto document = read_profile(text, "my.toml");
    return document.ok() ? std::string("accepted") : document.error().message;
  };
  EXPECT_THAT(message(edited("layers = 32", "layers = \"32\"")), HasSubstr("model.layers must be"));
  EXPECT_THAT(message(edited("layers = 32", "layers = 31.5")), HasSubstr("whole number"));
  EXPECT_THAT(message(edited("layers = 32", "layers = -1")), HasSubstr("my.toml:7: model.layers"));
  EXPECT_THAT(message(edited("layers = 32", "layer = 32")), HasSubstr("no key model.layer"));
  EXPECT_THAT(message(edited("block_tokens = 16", "")), HasSubstr("also needs model.block_tokens"));
  EXPECT_THAT(message(edited("h2d_bytes_s = 7.62e9", "h2d_bytes_s = 0")), HasSubstr("h2d_bytes_s"));
  EXPECT_THAT(message(edited("hbm_bytes = 2147483648", "hbm_bytes = 1000")),
              HasSubstr("does not fit"));
}

TEST(UserProfile, AnUnknownNameListsThePresets) {
  const auto profile = load_profile("tpu");
  ASSERT_FALSE(profile.ok());
  EXPECT_EQ(profile.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(profile.error().message, HasSubstr("gh200-qwen2.5-32b"));
}

TEST(ProfilesCommand, JsonSaysWhichFiguresAreNotPublished) {
  std::ostringstream out;
  std::ostringstream err;
  ASSERT_EQ(profiles_command({.name = "a5000-llama3-8b", .json = true}, out, err), kDone);
  EXPECT_THAT(out.str(), HasSubstr("\"published\": false"));
  EXPECT_THAT(out.str(), HasSubstr("\"published\": true"));
  EXPECT_EQ(profiles_command({.name = "tpu", .json = true}, out, err), kUsage);
}

constexpr const char* kStatus = R"({"pools": [
  {"tier": "hbm", "capacity_bytes": 4294967296, "free_bytes": 2147483648, "region_bytes": 0},
  {"tier": "dram", "capacity_bytes": 8589934592, "free_bytes": 8589934592, "region_bytes": 0}],
  "link_bytes_per_s": {"h2d": 12e9, "d2h": 0}, "mean_step_s": 0.1306,
  "counters": {"steps": 100, "tokens": 400}})";

TEST(Calibrate, TakesWhatTheDaemonMeasured) {
  const auto base = load_document("a5000-llama3-8b");
  const auto made = calibrated(*base, kStatus, "mine");
  ASSERT_TRUE(made.ok()) << made.error().message;
  EXPECT_EQ(made->profile.name, "mine");
  EXPECT_EQ(made->profile.hbm, 4 * kGiB);
  EXPECT_EQ(made->profile.link.h2d_bytes_s, 12e9);
  EXPECT_EQ(made->profile.link.d2h_bytes_s, base->profile.link.d2h_bytes_s) << "not measured";
  // 2 GiB are 16,384 tokens: a step over them takes the measured time.
  const Batch batch{.decoding = 4, .context_tokens = 16384};
  EXPECT_NEAR(iteration_time(made->profile, batch).count(), 0.1306, 1e-6);
  EXPECT_THAT(profile_toml(made->entries), HasSubstr("measured: the daemon's copies"));
}

TEST(Calibrate, LeavesAnIdleDaemonsIterationAsItWas) {
  const auto base = load_document("a5000-llama3-8b");
  const auto made = calibrated(
      *base, R"({"pools": [], "link_bytes_per_s": {"h2d": 0, "d2h": 0}, "mean_step_s": 0})",
      "idle");
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made->profile.iteration.fixed, base->profile.iteration.fixed);
}

TEST(Calibrate, RefusesWhatIsNoStatus) {
  const auto base = load_document("a5000-llama3-8b");
  for (const char* text : {"", "[]", "{}", "{\"pools\": []}", "not json"}) {
    EXPECT_EQ(calibrated(*base, text, "x").error().code, ErrorCode::kInvalidArgument) << text;
  }
  std::ostringstream out;
  std::ostringstream err;
  CalibrateOptions options{"http://127.0.0.1:8470", "a5000-llama3-8b", "x", ""};
  EXPECT_EQ(calibrate_command(options, out, err), kUsage);
  EXPECT_THAT(err.str(), HasSubstr("kvdctl"));
}

}  // namespace
}  // namespace kvd::sim
