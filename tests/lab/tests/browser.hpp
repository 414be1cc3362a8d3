#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace kvd::sim::testing {

/// Chromium, found by $KVD_CHROMIUM or under a usual name on PATH; nothing where there is none.
[[nodiscard]] std::optional<std::filesystem::path> find_browser();

/// Runs it headless with a profile of its own in `scratch`, offline except for what `arguments`
/// name. Its standard output goes to `out`. Returns its exit status, or -1 when it was killed after
/// a minute.
[[nodiscard]] int run_browser(const std::filesystem::path& browser,
                              const std::filesystem::path& scratch,
                              const std::filesystem::path& out, std::vector<std::string> arguments);

}  // namespace kvd::sim::testing
