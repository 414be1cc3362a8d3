#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>

#include "tests/support/runtime_folder.hpp"

namespace kvd::sim {

struct Answer {
  int status = -1;
  std::string out, err;
};

inline std::string read(const std::filesystem::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

/// A program as users call it, and a folder for its files.
class ProgramTest : public testing::Test {
 protected:
  explicit ProgramTest(std::string program) : program_(std::move(program)) {}

  [[nodiscard]] Answer call(const std::string& arguments) const {
    const auto out = folder_ / "out", err = folder_ / "err";
    const std::string command = "timeout 120 " + program_ + " " + arguments + " >" + out.string() +
                                " 2>" + err.string() + " </dev/null";
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read(out), read(err)};
  }
  [[nodiscard]] std::string file(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  }

  std::string program_;
  test::RuntimeFolder own_;
  std::filesystem::path folder_ = own_.path();
};

}  // namespace kvd::sim
