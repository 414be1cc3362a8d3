#include "kvd/sim/workload/generators.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "kvd/sim/workload/agents.hpp"
#include "kvd/sim/workload/chat.hpp"
#include "kvd/sim/workload/lengths.hpp"

namespace kvd::sim {
namespace {

using Draw = std::function<void(Random&, Arrival&)>;

/// Prompt and answer are drawn independently, since nothing published says how they depend on each
/// other.
template <class Prompt, class Output>
Draw independent(Prompt prompt, Output output) {
  return [prompt, output](Random& random, Arrival& arrival) {
    arrival.prompt = prompt.draw(random);
    arrival.output = output.draw(random);
  };
}

// Quantiles of the Azure conversation trace of 2023.
Draw azure() {
  return independent(QuantileLengths({{0, 2},
                                      {0.1, 207},
                                      {0.25, 396},
                                      {0.5, 1020},
                                      {0.75, 1189},
                                      {0.9, 2735},
                                      {0.99, 4142},
                                      {1, 14050}}),
                     QuantileLengths({{0, 7},
                                      {0.1, 54},
                                      {0.25, 85},
                                      {0.5, 129},
                                      {0.75, 395},
                                      {0.9, 424},
                                      {0.99, 601},
                                      {1, 1000}}));
}

// Quantiles of Mooncake's conversation trace.
Draw mooncake() {
  return independent(QuantileLengths({{0, 891},
                                      {0.1, 964},
                                      {0.25, 2306},
                                      {0.5, 6909},
                                      {0.75, 15368},
                                      {0.9, 27367},
                                      {0.99, 85401},
                                      {1, 126195}}),
                     QuantileLengths({{0, 1},
                                      {0.1, 24},
                                      {0.25, 156},
                                      {0.5, 350},
                                      {0.75, 472},
                                      {0.9, 597},
                                      {0.99, 1120},
                                      {1, 2000}}));
}

// ShareGPT as in the vLLM paper: means 161 and 338. The spread and the ends (the dataset's 4 to
// 2,300 tokens, LayerKV section 5.1) are ours.
Draw sharegpt() {
  return independent(ClippedLogNormal(161, 1.3, 4, 2048), ClippedLogNormal(338, 1.0, 4, 2048));
}

// Quantiles of 300 ShareGPT conversations as LLaMA-3.1-8B continued them.
Draw sharegpt_llama() {
  return independent(QuantileLengths({{0, 262},
                                      {0.1, 363},
                                      {0.25, 483},
                                      {0.5, 730},
                                      {0.75, 1111},
                                      {0.9, 1458},
                                      {0.99, 2764},
                                      {1, 3998}}),
                     QuantileLengths({{0, 512},
                                      {0.1, 531},
                                      {0.25, 562},
                                      {0.5, 631},
                                      {0.75, 767},
                                      {0.9, 770},
                                      {0.99, 784},
                                      {1, 1021}}));
}

/// OrbitFlow's mixes of short and long prompts and answers: the bins that its trace files are named
/// after, 20 % up or down, and no request above what the batch may hold. The shares are those of
/// short-short, short-long, long-short and long-long; nothing published says what they are.
struct Mix {
  const char* name;
  const char* description;
  std::array<double, 4> shares;
};
constexpr double kMostTokens = 32384;

double around(Random& random, std::initializer_list<double> bins) {
  const auto pick = static_cast<std::size_t>(random.uniform() * static_cast<double>(bins.size()));
  return bins.begin()[pick] * (0.8 + 0.4 * random.uniform());
}
double length(Random& random, bool is_long) {
  return is_long ? around(random, {4096, 8192, 16384}) : around(random, {256, 512, 1024, 2048});
}

Draw orbitflow(std::array<double, 4> shares) {
  return [shares](Random& random, Arrival& arrival) {
    double at = random.uniform() * (shares[0] + shares[1] + shares[2] + shares[3]);
    std::size_t kind = 0;
    while (kind < 3 && at >= shares[kind]) at -= shares[kind++];
    const double prompt = length(random, kind >= 2);
    const double output = length(random, kind % 2 == 1);
    // If the two together are too long, both become shorter in proportion.
    const double shrink = std::min(1.0, kMostTokens / (prompt + output));
    arrival.prompt = Tokens(static_cast<std::int64_t>(prompt * shrink));
    arrival.output = Tokens(static_cast<std::int64_t>(output * shrink));
  };
}

constexpr std::array<Mix, 6> kMixes = {
    Mix{"orbitflow-balanced", "short and long prompts and answers in equal shares", {1, 1, 1, 1}},
    Mix{"orbitflow-ss-heavy", "mostly short prompts with short answers", {83, 0, 8, 8}},
    Mix{"orbitflow-sl-heavy", "mostly short prompts with long answers", {8, 83, 8, 0}},
    Mix{"orbitflow-ls-heavy", "mostly long prompts with short answers", {8, 0, 83, 8}},
    Mix{"orbitflow-ll-heavy", "mostly long prompts with long answers", {8, 0, 8, 83}},
    Mix{"orbitflow-stress", "half long prompts with long answers", {1, 1, 1, 3}}};

ArrivalPattern pattern(double rate, double seconds) {
  return {.rate = rate, .cv = 1, .duration = Seconds(seconds), .requests = std::nullopt};
}

std::vector<Generator> make_generators() {
  std::vector<Generator> made = {
      {"azure", "lengths of the Azure conversation trace (2023), 5.53 requests a second",
       pattern(5.53, 120), azure()},
      {"mooncake", "lengths of Mooncake's conversation trace, 3.4 requests a second",
       pattern(3.4, 120), mooncake()},
      {"sharegpt", "ShareGPT with the vLLM paper's means, 161 and 338 tokens", pattern(5, 120),
       sharegpt()},
      {"sharegpt-llama", "ShareGPT prompts with the answers of LLaMA-3.1-8B", pattern(5, 120),
       sharegpt_llama()},
      {"chat", "conversations with shared prefixes, ShareGPT's lengths a turn", pattern(5, 1800),
       nullptr, chat},
      {"agents", "sessions of agents that wait for tools, with sub-agents", pattern(1, 7200),
       nullptr, agents}};
  for (const Mix& mix : kMixes) {
    // OrbitFlow section 5.1: 0.97 requests a minute.
    const ArrivalPattern arrivals{
        .rate = 0.97 / 60, .cv = 1, .duration = std::nullopt, .requests = 32};
    made.push_back(
        {mix.name, std::string("OrbitFlow: ") + mix.description, arrivals, orbitflow(mix.shares)});
  }
  return made;
}

/// Reads "128-512" of "fixed-128-512".
Result<Generator> fixed_lengths(std::string_view name) {
  std::int64_t prompt = 0;
  std::int64_t output = 0;
  const std::string_view numbers = name.substr(std::string_view("fixed-").size());
  const char* end = numbers.data() + numbers.size();
  const auto first = std::from_chars(numbers.data(), end, prompt);
  const bool dash = first.ec == std::errc() && first.ptr != end && *first.ptr == '-';
  const auto second = dash ? std::from_chars(first.ptr + 1, end, output) : first;
  if (!dash || second.ec != std::errc() || second.ptr != end || prompt < 1 || output < 1) {
    return make_error(ErrorCode::kInvalidArgument,
                      "\"gen:" + std::string(name) +
                          "\": write gen:fixed-PROMPT-OUTPUT with two lengths of at least 1 token");
  }
  const Draw lengths = [prompt, output](Random&, Arrival& arrival) {
    arrival.prompt = Tokens(prompt);
    arrival.output = Tokens(output);
  };
  return Generator{std::string(name), "every request alike", pattern(1, 100), lengths};
}

}  // namespace

const std::vector<Generator>& generators() {
  static const std::vector<Generator> kGenerators = make_generators();
  return kGenerators;
}

Result<Generator> generator_named(std::string_view name) {
  if (name.starts_with("fixed-")) return fixed_lengths(name);
  std::string names;
  for (const Generator& generator : generators()) {
    if (generator.name == name) return generator;
    names += "gen:" + generator.name + ", ";
  }
  return make_error(ErrorCode::kNotFound, "there is no workload \"gen:" + std::string(name) +
                                              "\"; there are " + names +
                                              "gen:fixed-PROMPT-OUTPUT, and trace files");
}

Result<Workload> generate(const Generator& generator, const WorkloadOptions& options) {
  ArrivalPattern arrivals = generator.arrivals;
  arrivals.rate = options.rate.value_or(arrivals.rate);
  arrivals.cv = options.cv.value_or(arrivals.cv);
  if (options.duration || options.requests) {
    arrivals.duration = options.duration;
    arrivals.requests = options.requests;
  }
  // Lengths have a random sequence of their own, so that two rates meet the same requests.
  Random times(options.seed);
  Random lengths(options.seed ^ 0x9e3779b97f4a7c15);
  if (generator.sessions) return generator.sessions(arrivals, times, lengths);
  KVD_ASSIGN_OR_RETURN(const auto when, arrival_times(arrivals, times));
  Workload workload(when.size());
  for (std::size_t i = 0; i < when.size(); ++i) {
    workload[i].time = when[i];
    generator.lengths(lengths, workload[i]);
  }
  return workload;
}

}  // namespace kvd::sim
