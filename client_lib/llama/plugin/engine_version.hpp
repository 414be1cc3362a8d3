#pragma once

#include <optional>
#include <string>

namespace kvd::llama {

/// ggml's structs change between versions that carry the same backend API version, and the plugin
/// shares them with the engine: it serves the versions its tests have run with, and no other but
/// the one whose headers it was built with.
#ifdef KVD_GGML_VERSION
inline constexpr const char* kOldestGgml = KVD_GGML_VERSION;
inline constexpr const char* kNewestGgml = KVD_GGML_VERSION;
#else
inline constexpr const char* kOldestGgml = "0.18.0";
inline constexpr const char* kNewestGgml = "0.27.0";
#endif

/// Why an engine with this ggml_version() is not served; nothing: it is. Only the three numbers
/// count ("0.25.1-dev" is 0.25.1).
std::optional<std::string> refuse_version(const std::string& version);

}  // namespace kvd::llama
