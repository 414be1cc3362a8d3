#include "client_lib/llama/driver/options.hpp"

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace kvd_llama {
namespace {

constexpr const char* kUsage =
    "usage: kvd-llama --model FILE.gguf --input FILE [options]\n"
    "  --tokens N          tokens to generate per context (256)\n"
    "  --prompt-tokens N   prompt length, bytes of the input as token ids (64)\n"
    "  --context-size N    tokens the KV cache holds (1024)\n"
    "  --threads N         threads that compute (1)\n"
    "  --gpu-layers N      layers that llama.cpp gives to a device (all)\n"
    "  --contexts N        contexts alive at once, advanced in turn (1)\n"
    "  --rounds N          make and free the contexts N times (1)\n"
    "  --logits-out FILE   write every step's token and logits (see kvd-llama-compare)\n"
    "  --progress-every N  tokens between two progress lines (16)\n"
    "  --pause-at N        after N tokens print a line and wait for SIGUSR1\n"
    "  --step-ms N         let a step take at least N ms (0)\n"
    "One JSON line per event on stdout; SIGTERM ends the run after the current step.\n";

bool parse_number(std::string_view text, std::uint32_t* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc{} && end == text.data() + text.size();
}

/// Sets the option called `name`; false: no such option, or not a number where one is needed.
bool set_option(std::string_view name, const char* value, Options* options) {
  if (name == "--model") return options->model = value, true;
  if (name == "--input") return options->input = value, true;
  if (name == "--logits-out") return options->logits_out = value, true;
  std::uint32_t number = 0;
  if (!parse_number(value, &number)) return false;
  if (name == "--tokens") return options->tokens = number, true;
  if (name == "--prompt-tokens") return options->prompt_tokens = number, true;
  if (name == "--context-size") return options->context_size = number, true;
  if (name == "--threads") return options->threads = number, true;
  if (name == "--gpu-layers") {
    return options->gpu_layers = static_cast<std::int32_t>(number), true;
  }
  if (name == "--contexts") return options->contexts = number, true;
  if (name == "--rounds") return options->rounds = number, true;
  if (name == "--progress-every") return options->progress_every = number, true;
  if (name == "--pause-at") return options->pause_at = number, true;
  if (name == "--step-ms") return options->step_time = std::chrono::milliseconds(number), true;
  return false;
}

/// What is wrong with the options taken together; nullptr: nothing.
const char* find_fault(const Options& options) {
  if (options.model.empty() || options.input.empty()) return "--model and --input are needed";
  if (options.prompt_tokens == 0 || options.tokens == 0 || options.contexts == 0 ||
      options.threads == 0 || options.rounds == 0 || options.progress_every == 0) {
    return "counts must be at least 1";
  }
  const auto needed = std::uint64_t{options.prompt_tokens} + options.tokens;
  if (needed > options.context_size) return "prompt and tokens do not fit into --context-size";
  return nullptr;
}

}  // namespace

std::optional<Options> parse_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    if (std::strcmp(argv[i], "--help") == 0) {
      std::fputs(kUsage, stdout);
      std::exit(0);
    }
    if (i + 1 == argc || !set_option(argv[i], argv[i + 1], &options)) {
      std::fprintf(stderr, "kvd-llama: bad option %s\n%s", argv[i], kUsage);
      return std::nullopt;
    }
  }
  if (const char* fault = find_fault(options)) {
    std::fprintf(stderr, "kvd-llama: %s\n%s", fault, kUsage);
    return std::nullopt;
  }
  return options;
}

}  // namespace kvd_llama
