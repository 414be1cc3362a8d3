#include "tests/lint/source_tree.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <string_view>

namespace kvd::lint {
namespace fs = std::filesystem;
namespace {

constexpr std::array<std::string_view, 7> kRooms = {"ipc",        "kernels", "planner", "kvd",
                                                    "client_lib", "metrics", "tests"};

bool is_source_folder(const fs::path& folder) {
  const std::string name = folder.filename().string();
  return name != "node_modules" && name != "build" && name != "__pycache__" &&
         !name.starts_with('.');
}

}  // namespace

std::string Finding::to_string() const {
  return file.string() + ":" + std::to_string(line) + ": " + message;
}

std::string to_string(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    text += "\n" + finding.to_string();
  }
  return text;
}

std::vector<fs::path> files_under(const fs::path& root,
                                  const std::function<bool(const fs::path&)>& wanted) {
  std::vector<fs::path> found;
  for (const std::string_view room : kRooms) {
    if (!fs::is_directory(root / room)) {
      continue;
    }
    for (auto it = fs::recursive_directory_iterator(root / room); it != fs::end(it); ++it) {
      if (it->is_directory() && !is_source_folder(it->path())) {
        it.disable_recursion_pending();
      } else if (it->is_regular_file() && wanted(it->path())) {
        found.push_back(it->path().lexically_relative(root));
      }
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

bool is_source(const fs::path& file) {
  constexpr std::array<std::string_view, 5> kSuffixes = {".hpp", ".cpp", ".h", ".cu", ".cuh"};
  return std::find(kSuffixes.begin(), kSuffixes.end(), file.extension()) != kSuffixes.end();
}

std::vector<std::string> lines_of(const fs::path& file) {
  std::ifstream stream(file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
  }
  return lines;
}

}  // namespace kvd::lint
