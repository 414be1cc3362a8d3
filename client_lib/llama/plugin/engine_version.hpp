#pragma once

#include <optional>
#include <string>

namespace kvd::llama {

/// ggml's structs change between versions that carry the same backend API version, and the plugin
/// shares them with the engine: it serves the versions its tests have run with, and no other.
inline constexpr const char* kOldestGgml = "0.25.1";
inline constexpr const char* kNewestGgml = "0.25.1";

/// Why an engine with this ggml_version() is not served; nothing: it is. Only the three numbers
/// count ("0.25.1-dev" is 0.25.1).
std::optional<std::string> refuse_version(const std::string& version);

}  // namespace kvd::llama
