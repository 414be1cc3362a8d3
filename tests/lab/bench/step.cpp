// kvd-bench step: what a step costs the control thread, beside copying what it gives out.
#include <cstdio>

#include "ipc/vocabulary/check.hpp"
#include "tests/lab/bench/bench.hpp"
#include "tests/lab/bench/step_world.hpp"

namespace kvd::bench::step_benchmark {
namespace {

constexpr const char* kHelp =
    R"(usage: kvd-bench step [--json] [--prompt TOKENS] [--steps N] [--row NAME]

CPU time of one step in Controller::on, by how many requests run: step_16 to step_1024. In each step
every request that runs reports a token, one in 16 seals a block, and 64 others wait. _stream: half
of the layers of each are streamed; _rotate: one request leaves HBM and one comes back; _tight: as
many are parked, and not all can grow to what they announced. The floor is copying what the step gives out: reply, block table, copies and stream. Median of the steps, and
their 99th percentile (_p99).

  --prompt TOKENS   256 to 1024, in whole blocks of 16: 256     --steps N   of a row: 256
  --row NAME        only this one and its _p99, as step_64_tight: all

Limits: step_64 40 us, step_64_stream 120 us, step_1024 500 us.
)";

struct Load {
  const char* suffix;
  StepKind kind;
};
constexpr Load kLoads[] = {{"", StepKind::kPlain},
                           {"_stream", StepKind::kStream},
                           {"_rotate", StepKind::kRotate},
                           {"_tight", StepKind::kTight}};

double p99(std::vector<double> values) {
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(values.size() * 99 / 100);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

std::string name_of(std::uint32_t running, const Load& load) {
  return "step_" + std::to_string(running) + load.suffix;
}

void measure(const Load& load, std::uint32_t running, std::int64_t prompt, std::uint32_t steps,
             std::vector<Row>& rows) {
  std::vector<double> values, floors;
  while (values.size() < steps) {
    StepWorld world(load.kind, running, prompt);
    for (std::uint32_t i = 0; i < StepWorld::kSteps && values.size() < steps; ++i) {
      const StepCost cost = world.step();
      values.push_back(cost.step_us);
      floors.push_back(cost.copy_us);
    }
    const std::string fault = world.fault();
    KVD_CHECK(fault.empty(), ("the load is not what it should be: " + fault).c_str());
  }
  const std::string name = name_of(running, load);
  const auto add = [&](const std::string& row, double value, double floor) {
    rows.push_back({row, value, floor, value / floor, "us"});
  };
  add(name, median(values), median(floors));
  add(name + "_p99", p99(values), p99(floors));
}

int run(const Arguments& arguments) {
  const double prompt = arguments.number("--prompt", 256), steps = arguments.number("--steps", 256);
  const auto only = arguments.text("--row");
  if (prompt < StepWorld::kLeastPrompt || prompt > 1024 || steps < 1 || steps > 1e6) {
    std::fprintf(stderr, "kvd-bench step: --prompt is 256 to 1024, --steps 1 to 1000000\n");
    return 2;
  }
  const auto blocks = static_cast<std::int64_t>(prompt) / StepWorld::kBlockTokens;
  std::vector<Row> rows;
  for (const std::uint32_t running : {16U, 64U, 256U, 1024U}) {
    for (const Load& load : kLoads) {
      if (only && *only != name_of(running, load)) continue;
      measure(load, running, blocks * StepWorld::kBlockTokens, static_cast<std::uint32_t>(steps),
              rows);
    }
  }
  if (rows.empty()) {
    std::fprintf(stderr, "kvd-bench step: no row is named %s\n", only->c_str());
    return 2;
  }
  return print_rows(rows, arguments.json);
}

const Registration registration{
    {"step", "a step of 16 to 1,024 running requests; more: step --help", run, kHelp}};

}  // namespace
}  // namespace kvd::bench::step_benchmark
