#pragma once

#include <cstdint>
#include <string>

#include "tests/lab/bench/step_shell.hpp"

namespace kvd::bench {

/// What happens besides the tokens of the running requests.
enum class StepKind : std::uint8_t {
  kPlain,
  kStream,  ///< half of the layer groups of every request stream
  kRotate,  ///< in every step a request leaves HBM and another comes back
  kTight,   ///< as many are parked as run, and wait for room: not all can grow to their end
};

/// An engine under a steady load. In every step each running request reports a token, and one in 16
/// seals a block. 64 others wait in line: each may grow to three quarters of HBM, and kvd admits no
/// request that could not grow to all it asked for.
///
/// The policies are those of the installed kvd.toml, except for rotation. kStream has `fcfs`,
/// because `unified` streams layers only of a few large requests. kRotate has `lvf`, a budget of
/// one request a step, and full HBM: as contexts grow, another engine of the domain gives back
/// regions. With kTight another engine has all the memory that the others came in with, except what
/// the running ones grow by.
///
/// Owner: one thread.
class StepWorld {
 public:
  static constexpr std::uint32_t kWaiting = 64;
  /// Groups of the model: slots of 256 KiB, as by default.
  static constexpr std::uint32_t kGroups = 8;
  static constexpr std::int64_t kBlockTokens = 16;
  /// In tokens; with fewer, the free part of HBM could hold a request.
  static constexpr std::int64_t kLeastPrompt = 256;
  /// How many steps it has memory for, once it is steady.
  static constexpr std::uint32_t kSteps = 64;

  /// Brings the load to its steady state. `running` and `prompt` are multiples of 16; a prompt has
  /// up to 15 tokens more. Ends the program where no steady state is reached.
  StepWorld(StepKind kind, std::uint32_t running, std::int64_t prompt);

  StepCost step();
  /// What has differed from the description above since the steady state began; empty: nothing.
  [[nodiscard]] std::string fault() const;

  [[nodiscard]] core::ControllerStatus status() const { return shell_.status(); }
  /// Ends a running request, and thereby the steady state.
  void abort_one();

 private:
  // Sizes, in blocks of all layer groups.
  [[nodiscard]] std::int64_t slab_blocks() const;
  [[nodiscard]] std::int64_t first_blocks() const;  ///< blocks of a request that comes in
  [[nodiscard]] std::int64_t last_blocks() const;   ///< blocks that it may grow to
  [[nodiscard]] std::int64_t spare_blocks() const;  ///< blocks that all requests grow by
  [[nodiscard]] std::int64_t hbm_blocks() const;
  [[nodiscard]] std::int64_t dram_blocks() const;
  [[nodiscard]] std::int64_t free_blocks() const;
  [[nodiscard]] std::int64_t growing() const;
  [[nodiscard]] std::int64_t largest() const;

  [[nodiscard]] std::uint32_t inside() const;  ///< requests that run, rotate or are parked
  [[nodiscard]] core::Controller::Config config() const;
  [[nodiscard]] EngineId attach(bool blocks);
  void lease(std::int64_t blocks);
  void map_all();
  void map_free();
  void submit();
  void park();
  void settle();
  void keep_full();
  void budget_one();
  [[nodiscard]] std::vector<core::StepReport> reports();
  [[nodiscard]] std::string reply_fault() const;
  [[nodiscard]] std::string stream_fault() const;

  const StepKind kind_;
  const std::uint32_t running_;
  const std::int64_t prompt_;
  StepShell shell_;
  EngineId engine_;
  EngineId lender_;  ///< holds the regions; kRotate and kTight

  // As of the beginning of the steady state.
  core::Counters before_;
  std::uint64_t steps_ = 0;
  std::int64_t sealed_ = 0;
  std::uint64_t tokens_ = 0;
  std::string fault_;  ///< the first fault of a reply
};

}  // namespace kvd::bench
