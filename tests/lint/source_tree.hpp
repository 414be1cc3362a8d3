#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace kvd::lint {

/// One broken rule, printed the way a compiler prints an error, so that editors can jump to it.
struct Finding {
  std::filesystem::path file;  // relative to the repository root
  std::size_t line = 0;        // 1-based; 0 = the whole file
  std::string message;

  [[nodiscard]] std::string to_string() const;
};

std::string to_string(const std::vector<Finding>& findings);

/// Every regular file under the source rooms of `root` that `wanted` accepts, relative to `root`
/// and sorted. Build trees, node_modules and dot folders are not source.
std::vector<std::filesystem::path> files_under(
    const std::filesystem::path& root,
    const std::function<bool(const std::filesystem::path&)>& wanted);

/// Files a C++ compiler reads: headers, sources, CUDA.
bool is_source(const std::filesystem::path& file);

std::vector<std::string> lines_of(const std::filesystem::path& file);

}  // namespace kvd::lint
