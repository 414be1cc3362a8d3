#include "kvd/sim/workload/agents.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "kvd/sim/workload/lengths.hpp"

namespace kvd::sim {
namespace {

/// Mean number of requests of a session, those of its sub-agents included.
constexpr double kMeanRequests = 68;
constexpr double kSpawns = 1.0 / 20;
constexpr std::int64_t kCompactedAt = 65536;  // tokens
constexpr std::int64_t kSummary = 2048;
constexpr Seconds kRelease{1800};
/// Blocks that each program begins with, the most popular program first.
constexpr std::array<std::int64_t, 6> kProgramBlocks = {16, 12, 24, 8, 16, 10};

/// A number from `least` to `most`, each in proportion to its number of choices.
std::size_t among(Random& random, std::size_t least, std::size_t most) {
  return least + static_cast<std::size_t>(random.uniform() * static_cast<double>(most - least + 1));
}

/// A time twice as long is half as likely.
Seconds tool_time(Random& random) {
  constexpr double kLeast = 2, kMost = 300;
  return Seconds(kLeast / (1 - random.uniform() * (1 - kLeast / kMost)));
}

/// What an agent has read and written so far.
struct Context {
  std::vector<std::uint64_t> blocks;  ///< ids of the full blocks
  std::int64_t tokens = 0;
};

class Sessions {
 public:
  Sessions(Random& random, Workload& out) : random_(random), out_(out) {}

  void add(Seconds at) {
    const Context program = this->program(at);
    Context main = program;
    say(main, task_.draw(random_));
    for (std::size_t turns = among(random_, 10, 60); turns > 0; --turns) {
      if (main.tokens > kCompactedAt) {
        main = program;
        say(main, Tokens(kSummary));
      }
      at = turn(main, at);
      if (random_.uniform() < kSpawns) at = sub_agents(main, at);
      say(main, result_.draw(random_));
    }
  }

 private:
  /// The release that is current at that time.
  Context program(Seconds at) {
    const std::size_t which = std::min(among(random_, 0, 5), among(random_, 0, 5));
    const auto release = static_cast<std::uint64_t>(at / kRelease);
    const auto [known, is_new] = programs_.try_emplace({which, release});
    if (is_new) say(known->second, kPrefixTokens * kProgramBlocks[which]);
    return known->second;
  }
  void say(Context& context, Tokens more) {
    context.tokens += more.value;
    const auto full = static_cast<std::size_t>(context.tokens / kPrefixTokens.value);
    while (context.blocks.size() < full) context.blocks.push_back(++last_block_);
  }
  /// Returns the time at which its tool has answered.
  Seconds turn(Context& context, Seconds at) {
    Arrival turn;
    turn.time = at;
    turn.prompt = Tokens(context.tokens);
    turn.output = answer_.draw(random_);
    turn.prefix = context.blocks;
    say(context, turn.output);
    out_.push_back(std::move(turn));
    return at + tool_time(random_);
  }
  Seconds sub_agents(const Context& main, Seconds begin) {
    Seconds end = begin;
    for (std::size_t count = among(random_, 1, 4); count > 0; --count) {
      Context own = main;
      Seconds at = begin;
      say(own, task_.draw(random_));
      for (std::size_t turns = among(random_, 3, 12); turns > 0; --turns) {
        at = turn(own, at);
        say(own, result_.draw(random_));
      }
      end = std::max(end, at);
    }
    return end;
  }

  const ClippedLogNormal task_{2000, 1.0, 200, 16384};
  const ClippedLogNormal result_{1000, 1.2, 50, 16384};
  const ClippedLogNormal answer_{300, 1.0, 20, 4096};
  Random& random_;
  Workload& out_;
  std::map<std::pair<std::size_t, std::uint64_t>, Context> programs_;  ///< each with its release
  std::uint64_t last_block_ = 0;
};

}  // namespace

Result<Workload> agents(const ArrivalPattern& pattern, Random& times, Random& lengths) {
  ArrivalPattern begins = pattern;
  begins.rate /= kMeanRequests;
  KVD_ASSIGN_OR_RETURN(const auto beginnings, arrival_times(begins, times));
  Workload turns;
  Sessions sessions(lengths, turns);
  for (const Seconds at : beginnings) sessions.add(at);
  return in_order(std::move(turns), pattern);
}

}  // namespace kvd::sim
