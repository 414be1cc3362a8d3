#include "kvd/sim/workload/chat.hpp"

#include <array>
#include <cmath>
#include <utility>

#include "kvd/sim/workload/lengths.hpp"

namespace kvd::sim {
namespace {

constexpr double kMeanTurns = 4;
constexpr double kMeanThinking = 90;  // seconds
constexpr std::int64_t kMostTokens = 32768;
/// Blocks of each system prompt, the most popular one first.
constexpr std::array<std::int64_t, 12> kSystemBlocks = {2, 1, 4, 8, 1, 2, 1, 4, 2, 1, 8, 2};

std::size_t system_prompt(Random& random) {
  double all = 0;
  for (std::size_t i = 0; i < kSystemBlocks.size(); ++i) all += 1 / static_cast<double>(i + 1);
  double at = random.uniform() * all;
  std::size_t pick = 0;
  while (pick + 1 < kSystemBlocks.size() && at >= 1 / static_cast<double>(pick + 1)) {
    at -= 1 / static_cast<double>(++pick);
  }
  return pick;
}

/// The system prompts have the first ids. Each conversation has ids of its own after its system
/// prompt.
std::uint64_t block_id(std::size_t system, std::uint64_t conversation, std::int64_t block) {
  constexpr std::uint64_t kMostBlocks = kMostTokens / kPrefixTokens.value;
  const bool shared = block < kSystemBlocks[system];
  const std::uint64_t owner = shared ? system : kSystemBlocks.size() + conversation;
  return owner * kMostBlocks + static_cast<std::uint64_t>(block);
}

class Conversation {
 public:
  Conversation(std::uint64_t number, Seconds begins, Random& random)
      : number_(number), system_(system_prompt(random)), next_(begins) {
    said_ = kSystemBlocks[system_] * kPrefixTokens.value;
  }

  /// Adds its turns, until it ends or has no room for another one.
  void add_turns(Random& random, Workload& out) {
    do {
      Arrival turn;
      turn.time = next_;
      said_ += question_.draw(random).value;
      turn.prompt = Tokens(said_);
      turn.output = answer_.draw(random);
      if (said_ + turn.output.value > kMostTokens) return;
      for (std::int64_t block = 0; block < said_ / kPrefixTokens.value; ++block) {
        turn.prefix.push_back(block_id(system_, number_, block));
      }
      said_ += turn.output.value;
      out.push_back(std::move(turn));
      next_ -= Seconds(std::log(random.inside()) * kMeanThinking);
    } while (random.uniform() >= 1 / kMeanTurns);
  }

 private:
  const ClippedLogNormal question_{161, 1.3, 4, 2048};
  const ClippedLogNormal answer_{338, 1.0, 4, 2048};
  std::uint64_t number_;
  std::size_t system_;
  Seconds next_;
  std::int64_t said_ = 0;  ///< tokens
};

}  // namespace

Result<Workload> chat(const ArrivalPattern& pattern, Random& times, Random& lengths) {
  ArrivalPattern begins = pattern;
  begins.rate /= kMeanTurns;
  KVD_ASSIGN_OR_RETURN(const auto beginnings, arrival_times(begins, times));
  Workload turns;
  for (std::size_t i = 0; i < beginnings.size(); ++i) {
    Conversation(i, beginnings[i], lengths).add_turns(lengths, turns);
  }
  return in_order(std::move(turns), pattern);
}

}  // namespace kvd::sim
