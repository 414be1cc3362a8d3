// The logits of kvd-engine are the same, bit for bit, wherever kvd keeps its KV and whoever it lets
// run: compared with an engine that keeps everything in its own memory.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <future>

#include "tests/engines/engine_support.hpp"
#include "tests/support/daemon_process.hpp"
#include "tests/support/patience.hpp"

namespace kvd::test {
namespace {

using nlohmann::json;

constexpr std::size_t kRequests = 12;
constexpr std::uint64_t kPrompt = 120;
constexpr std::uint64_t kNew = 136;
constexpr std::uint64_t kDemand = kRequests * (kPrompt + kNew) * EngineProcess::kTokenBytes;

/// Tight SLOs, so that requests push each other out.
json request(std::size_t seed, std::uint64_t max_tokens = kNew) {
  json prompt = json::array();
  for (std::size_t i = 0; i < kPrompt; ++i) prompt.push_back((seed * 131 + i * i * 7) % 256);
  return {{"prompt", prompt},
          {"max_tokens", max_tokens},
          {"kvd_digest", true},
          {"kvd_ttft_s", 0.002},
          {"kvd_tbt_s", 0.001}};
}

/// Sends all requests at once, or in turn to several engines.
std::vector<Generation> generate(const std::vector<std::uint16_t>& ports) {
  std::vector<std::future<Generation>> open;
  for (std::size_t i = 0; i < kRequests; ++i) {
    open.push_back(std::async(std::launch::async, [port = ports[i % ports.size()], i] {
      return Stream(port, request(i)).finish();
    }));
  }
  std::vector<Generation> out;
  out.reserve(open.size());
  for (auto& one : open) out.push_back(one.get());
  return out;
}

void expect_same(const std::vector<Generation>& out, const std::vector<Generation>& expected) {
  ASSERT_EQ(out.size(), expected.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    EXPECT_TRUE(out[i].done) << out[i].error;
    EXPECT_EQ(out[i].tokens.size(), kNew);
    EXPECT_TRUE(out[i].same_bits(expected[i])) << "request " << i;
  }
}

/// Rotates whole requests, or lets the placement policy decide: then layers stream and requests
/// pause. Under `unified` that happens only to requests of which HBM holds fewer than two.
enum class Moves { kWhole, kAnything };

KvdSettings pool_of(std::uint64_t bytes, Moves moves) {
  constexpr std::uint64_t kSlab = 2 << 20;
  KvdSettings settings;
  if (moves == Moves::kWhole) {
    settings.extra = "[placement]\npolicy = 'none'\n[admission]\npolicy = 'none'\n";
  } else {
    settings.extra = "[rotation]\npolicy = 'fcfs'\n";
  }
  settings.hbm = std::to_string((bytes + kSlab - 1) / kSlab * kSlab) + "B";
  return settings;
}

json counters(const KvdProcess& kvd) {
  return json::parse(kvd.get("/v1/status").body).at("counters");
}

class EngineIdentity : public testing::Test {
 protected:
  /// All-resident, each request in a company of its own.
  static void SetUpTestSuite() {
    EngineProcess engine("", {"--chunk", "50"});
    ASSERT_TRUE(engine.wait_ready()) << engine.log();
    expected_ = new std::vector<Generation>(generate({engine.port()}));
  }
  static void TearDownTestSuite() { delete expected_; }

  static std::vector<Generation>* expected_;
  const RuntimeFolder folder_;
};
std::vector<Generation>* EngineIdentity::expected_ = nullptr;

/// The reference itself does not depend on company or chunks, and its output is no monotony.
TEST_F(EngineIdentity, OfTheReferenceAlone) {
  EngineProcess engine("", {"--layers-per-block", "3", "--block-tokens", "7"});
  ASSERT_TRUE(engine.wait_ready()) << engine.log();
  for (const std::size_t i : {std::size_t{0}, kRequests - 1}) {
    const Generation alone = Stream(engine.port(), request(i)).finish();
    EXPECT_TRUE(alone.same_bits((*expected_)[i]));
    const std::set<std::uint32_t> distinct(alone.tokens.begin(), alone.tokens.end());
    EXPECT_GT(distinct.size(), 50U);
  }
}

struct Case {
  std::uint64_t percent;
  const char* layers_per_block;
  Moves moves = Moves::kWhole;
};

class EngineOnKvd : public EngineIdentity, public testing::WithParamInterface<Case> {};

TEST_P(EngineOnKvd, HasTheBitsOfTheReference) {
  KvdProcess kvd(folder_, pool_of(kDemand * GetParam().percent / 100, GetParam().moves));
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  EngineProcess engine(kvd.endpoint(), {"--layers-per-block", GetParam().layers_per_block});
  ASSERT_TRUE(engine.wait_ready()) << engine.log();
  expect_same(generate({engine.port()}), *expected_);
  if (GetParam().percent < 100) {
    EXPECT_GT(counters(kvd)["copies"]["d2h"], 0);
  }
  EXPECT_EQ(counters(kvd)["layers"]["plans"] > 0, GetParam().moves == Moves::kAnything);
  if (GetParam().percent < 100 && GetParam().moves == Moves::kWhole) {
    EXPECT_GT(counters(kvd)["rotations_out"], 0);
    EXPECT_GT(counters(kvd)["rotations_in"], 0);
  }
  EXPECT_EQ(engine.health()["open"], 0);
  engine.signal(SIGTERM);
  EXPECT_EQ(engine.wait(), 0) << engine.log();
  EXPECT_EQ(counters(kvd)["engines_died"], 0);
}

INSTANTIATE_TEST_SUITE_P(Pools, EngineOnKvd,
                         testing::Values(Case{100, "0"}, Case{50, "1"}, Case{50, "4"},
                                         Case{25, "1"}, Case{25, "2"}, Case{25, "4"},
                                         Case{50, "1", Moves::kAnything},
                                         Case{25, "1", Moves::kAnything}),
                         [](const auto& test) {
                           const bool whole = test.param.moves == Moves::kWhole;
                           return std::string(whole ? "" : "Layers") + "Of" +
                                  std::to_string(test.param.percent) + "PercentWith" +
                                  test.param.layers_per_block + "LayersPerBlock";
                         });

TEST_F(EngineIdentity, OfTwoEnginesOnOneSmallPool) {
  KvdProcess kvd(folder_, pool_of(kDemand / 3, Moves::kWhole));
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  EngineProcess a(kvd.endpoint()), b(kvd.endpoint());
  ASSERT_TRUE(a.wait_ready() && b.wait_ready()) << a.log() << b.log();
  expect_same(generate({a.port(), b.port()}), *expected_);
  EXPECT_GT(counters(kvd)["rotations_out"], 0);
}

TEST_F(EngineIdentity, OutlivesTheDaemonInMidGeneration) {
  const KvdSettings small = pool_of(kDemand / 3, Moves::kWhole);
  std::optional<KvdProcess> kvd(std::in_place, folder_, small);
  ASSERT_TRUE(kvd->wait_ready()) << kvd->log();
  EngineProcess engine(kvd->endpoint());
  ASSERT_TRUE(engine.wait_ready()) << engine.log();
  auto out = std::async(std::launch::async, [&] { return generate({engine.port()}); });
  ASSERT_TRUE(poll_until([&] { return counters(*kvd)["rotations_in"] > 3; }));
  ASSERT_GT(engine.health()["open"], 0);
  kvd->signal(SIGKILL);
  ASSERT_EQ(kvd->wait(), 128 + SIGKILL);
  ASSERT_TRUE(poll_until([&] { return engine.health()["status"] != "ok"; }));
  kvd.emplace(folder_, small);
  ASSERT_TRUE(kvd->wait_ready()) << kvd->log();
  expect_same(out.get(), *expected_);
  EXPECT_GE(engine.health()["restarts"], 1);
}

/// Flips the sign of one float in the engine's mapping of the pool; false: none there is written.
bool flip_a_byte(pid_t engine) {
  const std::string process = "/proc/" + std::to_string(engine);
  std::ifstream maps(process + "/maps");
  const UniqueFd memory(open((process + "/mem").c_str(), O_RDWR | O_CLOEXEC));
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/memfd:kvd-hbm") == std::string::npos) continue;
    const std::uint64_t begin = std::stoull(line, nullptr, 16);
    const std::uint64_t end = std::stoull(line.substr(line.find('-') + 1), nullptr, 16);
    for (std::uint64_t at = begin; at < end; at += 4) {
      std::uint32_t bits = 0;
      if (pread(memory.get(), &bits, 4, static_cast<off_t>(at)) != 4) break;
      if (bits == 0) continue;
      const auto flipped = static_cast<unsigned char>((bits >> 24U) ^ 0x80U);
      return pwrite(memory.get(), &flipped, 1, static_cast<off_t>(at + 3)) == 1;
    }
  }
  return false;
}

/// The control: had the KV not been in the pool, or the comparison been blind, a flipped byte there
/// would go unseen.
TEST_F(EngineIdentity, IsLostWithOneFlippedByteInThePool) {
  KvdProcess kvd(folder_);
  ASSERT_TRUE(kvd.wait_ready()) << kvd.log();
  EngineProcess engine(kvd.endpoint()), reference("");
  ASSERT_TRUE(engine.wait_ready() && reference.wait_ready()) << engine.log();
  constexpr std::size_t kMost = 7000;
  Stream stream(engine.port(), request(0, kMost)), expected(reference.port(), request(0, kMost));
  ASSERT_TRUE(stream.read_tokens(1));
  engine.signal(SIGSTOP);
  ASSERT_TRUE(flip_a_byte(engine.pid()));
  engine.signal(SIGCONT);
  const auto same = [&](std::size_t count) {
    return stream.so_far().digests[count - 1] == expected.so_far().digests[count - 1];
  };
  std::size_t count = 1;
  do {
    ASSERT_TRUE(stream.read_tokens(count) && expected.read_tokens(count));
    ASSERT_TRUE(same(count) || count > 1);
  } while (same(count) && ++count < kMost);
  EXPECT_LT(count, kMost);
}

}  // namespace
}  // namespace kvd::test
