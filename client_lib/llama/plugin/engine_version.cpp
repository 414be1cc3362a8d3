#include "client_lib/llama/plugin/engine_version.hpp"

#include <array>
#include <cstdio>

namespace kvd::llama {
namespace {

using Version = std::array<unsigned, 3>;

std::optional<Version> parse(const std::string& text) {
  Version version{};
  if (std::sscanf(text.c_str(), "%u.%u.%u", &version[0], &version[1], &version[2]) != 3) {
    return std::nullopt;
  }
  return version;
}

}  // namespace

std::optional<std::string> refuse_version(const std::string& version) {
  const auto found = parse(version);
  if (found && *found >= *parse(kOldestGgml) && *found <= *parse(kNewestGgml)) return std::nullopt;
  return "this engine has ggml " + version + ", and libggml-kvd.so is for " + kOldestGgml + " to " +
         kNewestGgml +
         ": KVD0 is not offered. Run llama.cpp of such a version, or build libggml-kvd.so against "
         "the source of yours (KVD_LLAMA_SOURCE)";
}

}  // namespace kvd::llama
