#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace kvd_llama {

/// What one run of the driver does. Tokens are model tokens, every step is one greedy token.
struct Options {
  std::string model;                       // GGUF file
  std::string input;                       // its bytes are the prompt's token ids
  std::string logits_out;                  // record file; empty: none is written
  std::uint32_t prompt_tokens = 64;        // taken from the input, a different place per context
  std::uint32_t tokens = 256;              // generated per context
  std::uint32_t context_size = 1024;       // tokens the KV cache holds
  std::uint32_t threads = 1;               // that compute
  std::int32_t gpu_layers = -1;            // layers that llama.cpp gives to a device; -1: all
  std::uint32_t contexts = 1;              // alive at once, advanced in turn
  std::uint32_t rounds = 1;                // contexts are freed and made again this often
  std::optional<std::uint32_t> pause_at;   // after this token of the first round: wait for SIGUSR1
  std::uint32_t progress_every = 16;       // tokens between two progress lines
  std::chrono::milliseconds step_time{0};  // least time a step takes, so that people can watch
};

/// Reads the command line. Prints the fault and returns nothing where it cannot run; --help ends
/// the program.
std::optional<Options> parse_options(int argc, char** argv);

}  // namespace kvd_llama
