#pragma once

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "ipc/vocabulary/check.hpp"

namespace kvd::test {

/// A folder of a test's own that others may enter, removed at the end. Short, because the path of a
/// Unix socket has 107 bytes.
class RuntimeFolder {
 public:
  RuntimeFolder() {
    std::string pattern = std::filesystem::temp_directory_path() / "kvd-test-XXXXXX";
    KVD_CHECK(::mkdtemp(pattern.data()) != nullptr, "no temporary folder");
    path_ = pattern;
    ::chmod(path_.c_str(), 0755);
  }
  ~RuntimeFolder() {
    std::error_code ignored;  // a folder left behind must not turn a passed test red
    std::filesystem::remove_all(path_, ignored);
  }
  RuntimeFolder(const RuntimeFolder&) = delete;
  RuntimeFolder& operator=(const RuntimeFolder&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace kvd::test
