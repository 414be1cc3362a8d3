#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace kvd::transport {

/// A folder for socket files, short enough for sun_path, removed at the end.
class Scratch {
 public:
  Scratch() {
    char name[] = "/tmp/kvd-ipc-XXXXXX";
    EXPECT_NE(mkdtemp(name), nullptr);
    folder_ = name;
  }
  ~Scratch() { std::filesystem::remove_all(folder_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  [[nodiscard]] std::string path(const std::string& file) const { return folder_ + "/" + file; }

 private:
  std::string folder_;
};

}  // namespace kvd::transport
