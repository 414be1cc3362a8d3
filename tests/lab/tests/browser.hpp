#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace kvd::sim::testing {

/// Chromium by $KVD_CHROMIUM or a usual name on PATH; nothing where there is none.
[[nodiscard]] std::optional<std::filesystem::path> find_browser();

/// Runs it headless with a profile of its own in `scratch`, offline but for what `arguments` name.
/// Its standard output goes to `out`. Returns its exit status, or -1 after a minute, when it is
/// killed.
[[nodiscard]] int run_browser(const std::filesystem::path& browser,
                              const std::filesystem::path& scratch,
                              const std::filesystem::path& out, std::vector<std::string> arguments);

}  // namespace kvd::sim::testing
