#include "tests/lab/bench/store_restart_bench.hpp"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "ipc/vocabulary/clock.hpp"
#include "tests/support/patience.hpp"
#include "tests/support/store_node.hpp"

namespace kvd::bench {
namespace {

constexpr std::uint32_t kRestartPrompts = 10;
constexpr std::uint64_t kPromptBlocks = 1000;
constexpr std::uint64_t kPromptTokens = kPromptBlocks * StoreNode::kBlockTokens + 1;

[[noreturn]] void restart_failed(const char* why) {
  std::fprintf(stderr, "kvd-bench store: %s\n", why);
  std::exit(1);
}

/// Runs prompts of 10,000 blocks. Returns how many of their tokens were found.
std::uint64_t run_all(StoreNode& node) {
  std::uint64_t found = 0;
  for (std::uint32_t prompt = 0; prompt < kRestartPrompts; ++prompt) {
    found += node.run(prompt, kPromptTokens);
  }
  return found;
}

/// As little memory as possible, since the time that a start needs to get memory is not measured.
test::KvdSettings small_settings() {
  test::KvdSettings settings;
  settings.hbm = "192MiB";
  settings.dram = "224MiB";
  settings.slab = "4MiB";
  return settings;
}

int passes_of(const Arguments& arguments) {
  const double passes = arguments.number("--restart-repetitions", 5);
  if (passes < 1 || passes > 1000) restart_failed("--restart-repetitions is 1 to 1000");
  return static_cast<int>(passes);
}

/// The seconds from a kill, after which `start` brings up another kvd, to the end of a prompt.
template <class Start>
Row timed(const char* name, StoreNode& node, int passes, Start kill_and_start) {
  const SteadyClock clock;
  std::vector<double> took;
  for (int pass = 0; pass < passes; ++pass) {
    const TimePoint killed = clock.now();
    const auto since = [&] { return to_seconds(clock.now() - killed); };
    kill_and_start();
    const double gone = since();
    node.attach_again();
    const double attached = since();
    const auto prompt = static_cast<std::uint32_t>(pass) % kRestartPrompts;
    if (node.run(prompt, kPromptTokens) < kPromptTokens - 1) {
      restart_failed("the first prompt after a restart is not found whole");
    }
    took.push_back(since());
    std::fprintf(stderr, "%s: gone after %.3f s, attached %.3f s, all found %.3f s\n", name, gone,
                 attached, took.back());
  }
  return {name, median(took), {}, {}, "s"};
}

}  // namespace

Row restart_row(const Arguments& arguments) {
  test::KvdSettings settings = small_settings();
  const test::RuntimeFolder disk;
  settings.extra =
      "[disk]\npath = '" + disk.path() + "'\nsize = '512MiB'\nfloor = '64MiB'\ntouches = 1\n";
  StoreNode node(settings);
  (void)run_all(node);
  constexpr auto kAll = static_cast<double>(kRestartPrompts * kPromptBlocks);
  const auto stored = [&] {
    return node.daemon().metric("kvd_disk_blocks_total{direction=\"store\"}").value_or(0) >= kAll;
  };
  if (!test::poll_until(stored)) restart_failed("not all blocks are written to disk");
  return timed("restart", node, passes_of(arguments), [&] {
    node.kill();
    node.start();
  });
}

Row restart_kept_row(const Arguments& arguments, Tier tier) {
  test::KvdSettings settings = small_settings();
  settings.under = {test::built_program("kvd-holder"), "--"};
  if (tier == Tier::kHbm) settings.extra = "[rotation]\neager = false\n";
  StoreNode node(settings);
  const auto kill = [&] { node.replace_held(); };
  // Cached blocks are written down a little later, so this repeats until all have outlived a kvd.
  constexpr std::uint64_t kAll = kRestartPrompts * (kPromptTokens - 1);
  std::uint64_t found = run_all(node);
  constexpr auto kBytes = static_cast<double>(kRestartPrompts * kPromptBlocks << 14);
  const std::string cached = "kvd_cache_bytes{tier=\"" + std::string(name(tier)) + "\"}";
  const auto there = [&] { return node.daemon().metric(cached).value_or(0) >= kBytes; };
  for (int i = 0; i < 10 && found < kAll; ++i) {
    if (!test::poll_until(there)) restart_failed("not all blocks come to the tier");
    kill();
    node.attach_again();
    found = run_all(node);
  }
  if (found < kAll) restart_failed("not all blocks outlive kvd");
  return timed(tier == Tier::kHbm ? "restart_hbm" : "restart_dram", node, passes_of(arguments),
               kill);
}

}  // namespace kvd::bench
