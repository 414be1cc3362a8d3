#include "tests/bench/store_restart_bench.hpp"

#include <cstdio>
#include <cstdlib>

#include "ipc/vocabulary/clock.hpp"
#include "tests/bench/store_node.hpp"
#include "tests/support/patience.hpp"

namespace kvd::bench {
namespace {

constexpr std::uint32_t kRestartPrompts = 10;
constexpr std::uint64_t kPromptBlocks = 1000;
constexpr std::uint64_t kPromptTokens = kPromptBlocks * StoreNode::kBlockTokens + 1;

[[noreturn]] void restart_failed(const char* why) {
  std::fprintf(stderr, "kvd-bench store: %s\n", why);
  std::exit(1);
}

/// Prompts of 10,000 blocks, all of them on disk.
void cache_all(StoreNode& node) {
  for (std::uint32_t prompt = 0; prompt < kRestartPrompts; ++prompt) {
    (void)node.run(prompt, kPromptTokens);
  }
  constexpr auto kAll = static_cast<double>(kRestartPrompts * kPromptBlocks);
  const auto stored = [&] {
    return node.daemon().metric("kvd_disk_blocks_total{direction=\"store\"}").value_or(0) >= kAll;
  };
  if (!test::poll_until(stored)) restart_failed("not all blocks are written to disk");
}

}  // namespace

Row restart_row(const Arguments& arguments) {
  const double passes = arguments.number("--restart-repetitions", 5);
  if (passes < 1 || passes > 1000) restart_failed("--restart-repetitions is 1 to 1000");
  // As little memory as will do: what a start takes to have it is not what is measured.
  test::KvdSettings settings;
  settings.hbm = "192MiB";
  settings.dram = "224MiB";
  settings.slab = "4MiB";
  const test::RuntimeFolder disk;
  settings.extra =
      "[disk]\npath = '" + disk.path() + "'\nsize = '512MiB'\nfloor = '64MiB'\ntouches = 1\n";
  StoreNode node(settings);
  cache_all(node);
  const SteadyClock clock;
  std::vector<double> took;
  for (int pass = 0; pass < static_cast<int>(passes); ++pass) {
    const TimePoint killed = clock.now();
    const auto since = [&] { return to_seconds(clock.now() - killed); };
    node.kill();
    const double gone = since();
    node.start();
    node.attach_again();
    const double attached = since();
    const auto prompt = static_cast<std::uint32_t>(pass) % kRestartPrompts;
    if (node.run(prompt, kPromptTokens) < kPromptTokens - 1) {
      restart_failed("the first prompt after a restart is not found whole");
    }
    took.push_back(since());
    std::fprintf(stderr, "restart: gone after %.3f s, attached %.3f s, all found %.3f s\n", gone,
                 attached, took.back());
  }
  return {"restart", median(took), {}, {}, "s"};
}

}  // namespace kvd::bench
