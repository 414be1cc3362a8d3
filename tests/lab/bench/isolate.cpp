// kvd-bench isolate: whether an engine can tell from timing what another domain has cached.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "ipc/vocabulary/check.hpp"
#include "tests/lab/bench/bench.hpp"
#include "tests/lab/bench/step_shell.hpp"

namespace kvd::bench::isolate_benchmark {
namespace {

constexpr const char* kIsolateHelp = R"(usage: kvd-bench isolate [--json] [--lookups N]

CPU time of the step in which a request of 64 blocks is looked up and gets its memory, by the real
Controller. Two domains share the pools; one of them has 64 prompts cached.

  others   us for a prompt that the other domain has cached
           floor: for a prompt that nobody has                 limit: ratio 0.98 to 1.02
  own      us for a prompt that its own domain has cached: the control, which is to differ
           floor: for a prompt that nobody has

  --lookups N   of each kind, medians of which are shown; in random order: 10000
)";

constexpr std::uint32_t kCachedPrompts = 64;
constexpr std::uint32_t kPromptBlocks = 64;
constexpr std::int64_t kBlockTokens = 16;
constexpr core::ModelClass kModel{1, 1, kBlockTokens, Bytes(64)};

Digest digest_of(std::uint64_t prompt, std::uint64_t block) {
  std::mt19937_64 random(prompt * 1000 + block + 1);
  Digest digest;
  for (std::size_t at = 0; at < digest.bytes.size(); at += 8) {
    const std::uint64_t word = random();
    std::memcpy(&digest.bytes[at], &word, sizeof word);
  }
  return digest;
}

class IsolateWorld {
 public:
  IsolateWorld() : shell_(config()) {
    one_ = attach(1);
    other_ = attach(2);
    for (std::uint32_t prompt = 0; prompt < kCachedPrompts; ++prompt) {
      cache(one_, prompt);
      cache(other_, kCachedPrompts + prompt);
    }
  }

  /// CPU microseconds of a step in which the second domain's engine looks the prompt up.
  double look_up(std::uint64_t prompt, bool is_known) {
    submit(other_, prompt);
    const StepCost cost = step(other_, {});
    const auto& run = shell_.seen().reply.run;
    KVD_CHECK(run.size() == 1 && (run[0].present > Tokens(0)) == is_known,
              "a prompt is found that is not its domain's, or is not found");
    shell_.command(other_, core::Abort{RequestId(last_)});
    return cost.step_us;
  }
  double another_domains(std::uint64_t i) { return look_up(i % kCachedPrompts, false); }
  double its_own(std::uint64_t i) { return look_up(kCachedPrompts + i % kCachedPrompts, true); }
  double nobodys(std::uint64_t i) { return look_up(1'000'000 + i % kCachedPrompts, false); }

 private:
  static core::Controller::Config config() {
    core::Controller::Config config;
    const Bytes slab = kModel.slot_bytes() * 1024;
    config.hbm = {{Tier::kHbm, slab, 32}};
    config.dram = {Tier::kDram, slab, 32};
    config.tuning.placement.policy = "none";
    config.tuning.admission.policy = "none";
    config.tuning.rotation.eager = false;  // only lookups are measured
    return config;
  }
  EngineId attach(std::uint32_t domain) {
    core::Attach attach;
    attach.name = "engine";
    attach.domain = DomainId(domain);
    attach.model_class = kModel;
    return shell_.attach(attach);
  }
  StepCost step(EngineId engine, std::vector<core::StepReport> reports) {
    core::Step body;
    body.iteration_finished = std::exchange(iteration_[engine], 0);
    body.reports = std::move(reports);
    const StepCost cost = shell_.step(engine, body);
    iteration_[engine] = shell_.seen().reply.iteration;
    return cost;
  }
  void submit(EngineId engine, std::uint64_t prompt) {
    const Tokens tokens(kPromptBlocks * kBlockTokens + 1);
    shell_.command(engine, core::Submit{RequestId(++last_), tokens, Tokens(1), {}, {}, {}});
    core::NameBlocks names;
    for (std::uint32_t block = 0; block < kPromptBlocks; ++block) {
      names.blocks.push_back({RequestId(last_), block, digest_of(prompt, block)});
    }
    shell_.command(engine, names);
  }
  void cache(EngineId engine, std::uint64_t prompt) {
    submit(engine, prompt);
    shell_.seen().reply.run.clear();
    std::vector<core::StepReport> reports;
    Tokens done;
    for (int i = 0; i < 10 && done < Tokens(kPromptBlocks * kBlockTokens + 1); ++i) {
      (void)step(engine, std::exchange(reports, {}));
      for (const core::RunEntry& entry : shell_.seen().reply.run) {
        done = entry.present + entry.tokens;
        reports.push_back({entry.request, done, true});
      }
    }
    (void)step(engine, reports);
  }

  StepShell shell_;
  EngineId one_, other_;
  std::map<EngineId, std::uint64_t> iteration_;  ///< the last granted one
  std::uint64_t last_ = 0;
};

int isolate(const Arguments& arguments) {
  const double lookups = arguments.number("--lookups", 10'000);
  if (lookups < 1 || lookups > 1e7) {
    std::fprintf(stderr, "kvd-bench isolate: --lookups is 1 to 10000000\n");
    return 2;
  }
  IsolateWorld world;
  std::mt19937_64 random(1);
  std::array<std::vector<double>, 3> us;
  std::array<int, 3> order = {0, 1, 2};
  for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(lookups); ++i) {
    std::shuffle(order.begin(), order.end(), random);
    for (const int kind : order) {
      us[static_cast<std::size_t>(kind)].push_back(kind == 0   ? world.another_domains(i)
                                                   : kind == 1 ? world.its_own(i)
                                                               : world.nobodys(i));
    }
  }
  const double nobody = median(us[2]);
  std::vector<Row> rows;
  for (const auto& [name, kind] : {std::pair("others", 0), std::pair("own", 1)}) {
    const double value = median(us[static_cast<std::size_t>(kind)]);
    rows.push_back({name, value, nobody, value / nobody, "us"});
  }
  return print_rows(rows, arguments.json);
}

const Registration isolation{{"isolate",
                              "what another domain has cached, by time; more: isolate --help",
                              isolate, kIsolateHelp}};

}  // namespace
}  // namespace kvd::bench::isolate_benchmark
