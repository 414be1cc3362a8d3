#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "tests/support/runtime_folder.hpp"

namespace kvd::test {

/// A folder with files that a test writes.
class WrittenFolder : public RuntimeFolder {
 public:
  /// Returns the full name of the file.
  std::string write(const std::string& name, std::string_view text) const {
    const std::filesystem::path path = file(name);
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
    return path.string();
  }
};

}  // namespace kvd::test
