// kvd-bench commands: what each command costs the control thread where kvd is fullest.
#include <algorithm>
#include <map>

#include "planner/solver/placement_solver.hpp"
#include "tests/lab/bench/bench.hpp"
#include "tests/lab/bench/command_world.hpp"

namespace kvd::bench::commands_benchmark {
namespace {

constexpr const char* kCommandsHelp = R"(usage: kvd-bench commands [--json]

CPU time of the control thread for one command of each kind, decoding included, with its largest
counts, where one domain has all that it may have: a million cached blocks, 8,192 requests with
names, full files, the copies that may be under way. Then the same for other events: the end of a
copy, of a session, a tick, a snapshot for operators.

  NAME   milliseconds, the dearest one               limit: 10
)";

int run(const Arguments& arguments) {
  std::vector<CommandCost> costs = CommandWorld().measure();
  std::sort(costs.begin(), costs.end(),
            [](const CommandCost& a, const CommandCost& b) { return a.ms > b.ms; });
  std::vector<Row> rows;
  rows.reserve(costs.size());
  for (const CommandCost& cost : costs) rows.push_back({cost.name, cost.ms, {}, {}, "ms"});
  return print_rows(rows, arguments.json);
}

const Registration registration{
    {"commands", "each command with its largest counts where kvd is fullest", run, kCommandsHelp}};

}  // namespace
}  // namespace kvd::bench::commands_benchmark
