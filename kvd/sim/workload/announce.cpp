#include "kvd/sim/workload/announce.hpp"

#include <algorithm>
#include <bit>
#include <charconv>
#include <optional>
#include <string>

#include "kvd/sim/workload/random.hpp"

namespace kvd::sim {
namespace {

constexpr std::int64_t kUsual = 8192;
constexpr std::int64_t kMost = 1'000'000'000;

std::optional<std::int64_t> tokens_in(std::string_view text) {
  std::int64_t tokens = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), tokens);
  if (fault != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return tokens >= 1 && tokens <= kMost ? std::optional(tokens) : std::nullopt;
}

// `left`: tokens left of the context.
std::int64_t of_some_client(std::int64_t output, std::int64_t left, Random& random) {
  const double kind = random.uniform() * 3;
  if (kind < 1) return kUsual;
  return kind < 2 ? left : std::int64_t(std::bit_ceil(static_cast<std::uint64_t>(output)));
}

}  // namespace

Status announce_lengths(Workload& workload, std::string_view how, std::uint64_t seed,
                        std::span<const Tokens> context) {
  const auto tokens = tokens_in(how);
  if (!tokens && how != "exact" && how != "context" && how != "mix") {
    return make_error(ErrorCode::kInvalidArgument,
                      "--max-tokens must be exact, context, mix or a number from 1 to 1000000000, "
                      "not \"" +
                          std::string(how) + "\"");
  }
  if (how == "exact") return {};
  Random random(seed ^ 0x8cb92ba72f3d8dd7);
  for (Arrival& arrival : workload) {
    const std::int64_t output = arrival.output.value;
    const std::int64_t left = (context[arrival.engine] - arrival.prompt).value;
    std::int64_t announced = left;
    if (tokens) announced = *tokens;
    if (how == "mix") announced = of_some_client(output, left, random);
    arrival.announced = Tokens(std::max(output, std::min(announced, left)));
  }
  return {};
}

}  // namespace kvd::sim
