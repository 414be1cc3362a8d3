/// kvd-llama: an inference engine in the small, on stock llama.cpp. It reads a file's bytes as
/// token ids, generates greedily and records every step. Which memory its KV cache lies in is none
/// of its business: the plugin comes in through the engine's own GGML_BACKEND_PATH.
#include <ggml-backend.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <set>
#include <thread>

#include "client_lib/llama/driver/generation.hpp"
#include "client_lib/llama/driver/interrupt.hpp"
#include "client_lib/llama/driver/options.hpp"
#include "client_lib/llama/driver/record.hpp"

namespace kvd_llama {
namespace {

using SteadyClock = std::chrono::steady_clock;

enum class Outcome { kDone, kStopped, kFailed };

std::vector<unsigned char> read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// The prompt of context `index`: each begins a prompt's length further on, wrapping at the end.
std::vector<llama_token> prompt_of(const std::vector<unsigned char>& bytes, std::uint32_t index,
                                   const Options& options, std::int32_t vocabulary) {
  std::vector<llama_token> prompt;
  for (std::uint32_t i = 0; i < options.prompt_tokens; ++i) {
    const std::size_t at = (std::size_t{index} * options.prompt_tokens + i) % bytes.size();
    prompt.push_back(bytes[at] % vocabulary);
  }
  return prompt;
}

/// One run over a loaded model: rounds of contexts, each advanced one token in turn.
class Run {
 public:
  Run(llama_model* model, const Options& options, std::vector<unsigned char> bytes)
      : model_(model),
        options_(options),
        bytes_(std::move(bytes)),
        vocabulary_(llama_vocab_n_tokens(llama_model_get_vocab(model))),
        record_(options.logits_out, static_cast<std::uint32_t>(vocabulary_)) {}

  Outcome run() {
    for (std::uint32_t round = 0; round < options_.rounds; ++round) {
      const Outcome outcome = run_round(round);
      if (outcome != Outcome::kDone) return outcome;
    }
    if (record_.finish()) return Outcome::kDone;
    std::fprintf(stderr, "kvd-llama: cannot write %s\n", options_.logits_out.c_str());
    return Outcome::kFailed;
  }

  void print(const char* event) const {
    const std::chrono::duration<double> elapsed = SteadyClock::now() - start_;
    const auto total = std::uint64_t{options_.tokens} * options_.contexts * options_.rounds;
    std::printf(
        "{\"event\":\"%s\",\"pid\":%d,\"tokens\":%llu,\"total\":%llu,"
        "\"tokens_per_s\":%.1f,\"distinct_tokens\":%zu}\n",
        event, static_cast<int>(getpid()), static_cast<unsigned long long>(tokens_),
        static_cast<unsigned long long>(total), static_cast<double>(tokens_) / elapsed.count(),
        distinct_.size());
    std::fflush(stdout);
  }

 private:
  Outcome run_round(std::uint32_t round) {
    std::vector<Generation> generations;
    for (std::uint32_t i = 0; i < options_.contexts; ++i) {
      generations.emplace_back(model_, options_, prompt_of(bytes_, i, options_, vocabulary_));
      if (!generations.back().ok()) return Outcome::kFailed;
    }
    if (round == 0) print("ready");
    for (std::uint32_t step = 1; step <= options_.tokens; ++step) {
      for (Generation& generation : generations) {
        if (!advance(generation)) return stop_requested() ? Outcome::kStopped : Outcome::kFailed;
      }
      if (round == 0 && options_.pause_at == step && !pause()) return Outcome::kStopped;
    }
    return Outcome::kDone;
  }

  bool advance(Generation& generation) {
    const auto begin = SteadyClock::now();
    if (stop_requested() || !generation.step()) return false;
    record_.append(generation.token(), generation.logits());
    distinct_.insert(generation.token());
    if (++tokens_ % options_.progress_every == 0) print("progress");
    std::this_thread::sleep_until(begin + options_.step_time);
    return true;
  }

  bool pause() const {
    print("paused");
    return wait_for_resume();
  }

  llama_model* model_;
  const Options& options_;
  std::vector<unsigned char> bytes_;
  std::int32_t vocabulary_;
  RecordWriter record_;
  std::uint64_t tokens_ = 0;
  std::set<llama_token> distinct_;
  SteadyClock::time_point start_ = SteadyClock::now();
};

/// Names the devices the engine found: the first one gets the layers, and with them the KV cache.
void print_devices() {
  std::printf(R"({"event":"devices","pid":%d,"names":[)", static_cast<int>(getpid()));
  for (std::size_t i = 0; i < ggml_backend_dev_count(); ++i) {
    std::printf("%s\"%s\"", i == 0 ? "" : ",", ggml_backend_dev_name(ggml_backend_dev_get(i)));
  }
  std::printf("]}\n");
  std::fflush(stdout);
}

/// Warnings and errors only: llama.cpp's account of a model load is hundreds of lines.
void log_problems(ggml_log_level level, const char* text, void*) {
  if (level == GGML_LOG_LEVEL_WARN || level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
}

int run_engine(const Options& options) {
  std::vector<unsigned char> bytes = read_bytes(options.input);
  if (bytes.empty()) {
    std::fprintf(stderr, "kvd-llama: %s is empty or not readable\n", options.input.c_str());
    return 1;
  }
  llama_log_set(log_problems, nullptr);
  ggml_backend_load_all_from_path(KVD_LLAMA_BACKEND_DIR);
  print_devices();
  const Model model = load_model(options);
  if (model == nullptr) return 1;
  Run run(model.get(), options, std::move(bytes));
  const Outcome outcome = run.run();
  run.print(outcome == Outcome::kDone      ? "done"
            : outcome == Outcome::kStopped ? "stopped"
                                           : "failed");
  return outcome == Outcome::kFailed ? 1 : 0;
}

}  // namespace
}  // namespace kvd_llama

int main(int argc, char** argv) {
  const auto options = kvd_llama::parse_options(argc, argv);
  if (!options) return 2;
  kvd_llama::block_signals();
  // A run that pauses wants to be looked into (and tampered with) while it stands still, also where
  // the kernel lets only parents do that.
  if (options->pause_at) prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  return kvd_llama::run_engine(*options);
}
