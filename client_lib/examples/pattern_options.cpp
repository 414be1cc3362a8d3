#include "client_lib/examples/pattern_options.hpp"

#include <CLI/CLI.hpp>
#include <cstdio>

#include "ipc/vocabulary/command_line.hpp"

namespace kvd_pattern {
namespace {

/// Binds the flags to the options; numbers of time go through `times` as they have no unit type.
struct Times {
  std::int64_t step_ms = 0;
  std::int64_t deadline_s = 60;
  std::int64_t ttft_slo_ms = 0;
  std::int64_t tbt_slo_ms = 0;
  std::int64_t gap_slo_ms = 0;
};

void describe(CLI::App& app, PatternOptions& options, Times& times) {
  const CLI::Range positive(1u, 1u << 20);
  const CLI::Range time(std::int64_t{0}, std::int64_t{1'000'000'000});
  app.add_option("--endpoint", options.endpoint, "attach socket of kvd (default: $KVD_ENDPOINT)");
  app.add_option("--name", options.name, "name shown by kvdctl");
  app.add_option("--requests", options.requests, "requests to run to their end")->check(positive);
  app.add_option("--prompt", options.prompt, "tokens of each prompt")->check(positive);
  app.add_option("--new", options.new_tokens, "tokens each request makes")->check(positive);
  app.add_option("--layers", options.shape.layers, "layers of the model")->check(positive);
  app.add_option("--layers-per-block", options.shape.layers_per_block, "0: kvd chooses");
  app.add_option("--block-tokens", options.shape.block_tokens, "0: kvd chooses");
  app.add_option("--bytes-per-token", options.shape.bytes_per_token_per_layer,
                 "KV bytes of a token in one layer, a multiple of 8")
      ->check([](const std::string& text) {
        const bool whole = !text.empty() && std::strtoull(text.c_str(), nullptr, 10) % 8 == 0;
        return whole ? std::string() : std::string("must be a multiple of 8");
      });
  app.add_option("--device", options.device, "which of kvd's devices to compute on, from 0");
  CLI::Option* const ranks =
      app.add_option("--ranks", options.group.ranks,
                     "be one of so many processes of a tensor-parallel group, each with a share of "
                     "its own of the same requests")
          ->check(CLI::Range(2u, 64u));
  app.add_option("--rank", options.group.rank, "which of them, from 0; rank 0 submits")
      ->needs(ranks);
  app.add_option("--group", options.group.id, "a number that the ranks have in common, not 0")
      ->needs(ranks);
  app.add_option("--seed", options.seed, "changes all bytes written");
  app.add_option("--step-ms", times.step_ms, "let an iteration take at least so long")->check(time);
  app.add_option("--deadline", times.deadline_s, "seconds for the whole run")->check(time);
  app.add_option("--ttft-slo-ms", times.ttft_slo_ms, "0: the domain's default")->check(time);
  app.add_option("--tbt-slo-ms", times.tbt_slo_ms, "0: the domain's default")->check(time);
  app.add_option("--gap-slo-ms", times.gap_slo_ms,
                 "the longest wait for a token after the first; 0: the domain's default")
      ->check(time);
  app.add_flag("--corrupt-once", options.corrupt_once,
               "control: flip one byte; the run must then report an error");
  app.add_flag("--ring", options.ring, "send commands over the ring in shared memory");
  app.add_flag("--json", options.json, "no progress lines, only the summary");
}

}  // namespace

std::optional<PatternOptions> parse_options(int argc, char** argv, int& status) {
  PatternOptions options;
  Times times;
  CLI::App app(
      "A stepping client of kvd: fills its blocks with bytes derived from (request, token, layer) "
      "and checks every block each time it reads it.",
      "kvd-pattern");
  app.set_version_flag("-V,--version", "kvd-pattern " KVD_VERSION, "print the version and exit");
  describe(app, options, times);
  if (const auto ended = kvd::parse_command_line(app, argc, argv)) {
    status = *ended;
    return std::nullopt;
  }
  if (options.group.ranks > 0 &&
      (options.group.id == 0 || options.group.rank >= options.group.ranks)) {
    std::fprintf(stderr, "kvd-pattern: --ranks needs --group, not 0, and a --rank below it\n");
    status = 2;
    return std::nullopt;
  }
  options.step = std::chrono::milliseconds(times.step_ms);
  options.deadline = std::chrono::seconds(times.deadline_s);
  options.ttft_slo = std::chrono::milliseconds(times.ttft_slo_ms);
  options.tbt_slo = std::chrono::milliseconds(times.tbt_slo_ms);
  options.gap_slo = std::chrono::milliseconds(times.gap_slo_ms);
  return options;
}

}  // namespace kvd_pattern
