// Under load.policy `overlap` the disk reads the end of a prompt while its engine computes the
// head, at random: memory is small, so most of a document is on disk alone.
#include <gtest/gtest.h>

#include "kvd/core/controller.hpp"
#include "tests/support/controller_world.hpp"

namespace kvd::test {
namespace {

using std::chrono::milliseconds;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kUsual = 24;  // half a second each
#else
constexpr std::uint64_t kUsual = 400;
#endif

/// Engines of one model, whose prompts begin as one of six documents does.
class TailsHistory {
 public:
  explicit TailsHistory(std::uint64_t seed, bool corrupt = false)
      : world_(config_of(seed), seed), corrupt_(corrupt) {
    world_.disk = DiskFiles<Content>(256);
    world_.disk.fail_reads = seed % 3 == 0 ? 8 : 0;
  }

  void play() {
    for (int i = 0; i < 300 && !::testing::Test::HasFatalFailure(); ++i) {
      if (world_.engines.size() < 2 && (world_.engines.empty() || chance(100))) attach();
      auto it = world_.engines.begin();
      std::advance(it, static_cast<std::ptrdiff_t>(below(world_.engines.size())));
      World::Engine& engine = it->second;
      if (engine.requests.empty() || (engine.requests.size() < 3 && chance(8))) submit(it->first);
      if (chance(80)) {
        const EngineId id = it->first;
        world_.die(id);
        world_.bury(id);
        continue;
      }
      if (chance(40)) abort_last(engine);
      if (chance(60)) world_.fail_copies = 1 + below(3);
      turn(engine);
    }
    world_.fail_copies = 0;
    EXPECT_TRUE(run_to_end(world_, 2000)) << "somebody waits for ever";
  }

  void end() {
    for (auto it = world_.engines.begin(); it != world_.engines.end();) {
      const EngineId id = (it++)->first;
      world_.die(id);
      world_.bury(id);
    }
    do {
      world_.finish_copies();
    } while (world_.disk.under_way() > 0);
    const ControllerStatus status = world_.controller->status(world_.now);
    EXPECT_EQ(world_.disk.wrong, 0u);
    EXPECT_EQ(status.counters.ended.for_memory, 0u);
    for (const auto tier : {0u, 1u}) {
      EXPECT_EQ(status.tiers[tier].free + status.cached[tier], status.tiers[tier].capacity);
    }
  }

  [[nodiscard]] std::int64_t skipped() const { return world_.skipped; }
  [[nodiscard]] std::size_t errors() const { return world_.errors; }

 private:
  static Controller::Config config_of(std::uint64_t seed) {
    Controller::Config config = small_pool(8, 6 + static_cast<std::uint32_t>(seed % 3) * 4);
    config.tuning.load.policy = "overlap";
    config.tuning.placement.policy = "none";
    config.tuning.rotation.eager = seed % 4 != 0;
    config.disk.name = plain_disk_name;
    config.disk.admission.least = 1;
    return config;
  }
  std::size_t below(std::size_t most) { return world_.random() % most; }
  bool chance(std::size_t n) { return below(n) == 0; }

  void attach() {
    const EngineId id = world_.attach(small_model());
    world_.engines.at(id).pipelined = chance(2);
  }
  void submit(EngineId id) {
    const Text text{1 + below(6), static_cast<std::uint32_t>(16 + below(10)), below(3)};
    const auto prompt = static_cast<std::int64_t>(40 + below(60));
    const auto answer = static_cast<std::int64_t>(1 + below(6));
    EXPECT_EQ(world_.submit(id, ++next_, prompt, answer, text), ErrorCode::kOk);
  }
  void abort_last(World::Engine& engine) {
    if (engine.requests.empty()) return;
    const auto request = std::prev(engine.requests.end())->first;
    world_.command(engine.id, Abort{RequestId(request)});
    engine.requests.erase(request);
    std::erase_if(engine.reports, [&](const StepReport& r) { return r.request.value == request; });
  }
  /// A token of a prompt takes 4 ms to compute, and a few blocks are read meanwhile.
  void turn(World::Engine& engine) {
    Tokens tokens;
    for (const RunEntry& entry : engine.reply.run) {
      if (entry.prefill) tokens += entry.tokens;
    }
    world_.pass(milliseconds(1 + 4 * tokens.value));
    if (corrupt_) world_.corrupt_next = true;
    world_.run_and_step(engine.id);
    world_.finish_disk(below(6));
    if (chance(2)) world_.finish_copies(below(4));
  }

  World world_;
  bool corrupt_;
  std::uint64_t next_ = 0;
};

/// KVD_HISTORIES is how many, KVD_FIRST_SEED the first.
TEST(ControllerTails, RandomHistoriesCorruptNothingAndLeakNothing) {
  const auto number_in = [](const char* variable, std::uint64_t otherwise) {
    const char* text = std::getenv(variable);
    return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
  };
  const std::uint64_t count = number_in("KVD_HISTORIES", kUsual);
  const std::uint64_t first = number_in("KVD_FIRST_SEED", 1);
  std::int64_t skipped = 0;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE("KVD_FIRST_SEED=" + std::to_string(seed));
    TailsHistory history(seed);
    history.play();
    if (!::testing::Test::HasFatalFailure()) history.end();
    EXPECT_EQ(history.errors(), 0u);
    if (::testing::Test::HasFailure()) return;
    skipped += history.skipped();
  }
  EXPECT_GT(skipped, static_cast<std::int64_t>(count / 4))
      << "tokens found while others were computed";
}

TEST(ControllerTails, RandomHistoriesNoticeWrongBytes) {
  std::size_t noticed = 0;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    TailsHistory history(seed, true);
    history.play();
    noticed += history.errors() > 0 ? 1u : 0u;
  }
  EXPECT_GE(noticed, 8u) << "in one or the other nobody reads what is wrong";
}

}  // namespace
}  // namespace kvd::test
