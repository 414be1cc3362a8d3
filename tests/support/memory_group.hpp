#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "tests/support/patience.hpp"

namespace kvd::test {

/// A control group for memory, of version 1 or 2, below the one the test runs in or at the top;
/// removed at the end. None where this process may not make one.
class MemoryGroup {
 public:
  static std::optional<MemoryGroup> create(std::uint64_t limit) {
    static int made = 0;
    const std::string name =
        "/kvd-test-" + std::to_string(::getpid()) + "-" + std::to_string(++made);
    for (const bool first : {true, false}) {
      const std::string root = first ? "/sys/fs/cgroup/memory" : "/sys/fs/cgroup";
      const std::string file = first ? "/memory.limit_in_bytes" : "/memory.max";
      std::error_code failed;
      std::filesystem::create_directory(root + name, failed);
      if (failed) continue;
      MemoryGroup group(root + name);
      if (!std::filesystem::exists(group.folder_ + "/cgroup.procs")) continue;  // a plain folder
      std::ofstream stream(group.folder_ + file);
      if (stream << limit << std::flush) return group;
    }
    return std::nullopt;
  }
  MemoryGroup(MemoryGroup&& other) noexcept : folder_(std::exchange(other.folder_, {})) {}
  MemoryGroup& operator=(MemoryGroup&& other) noexcept {
    std::swap(folder_, other.folder_);
    return *this;
  }
  ~MemoryGroup() {
    const auto removed = [this] { return ::rmdir(folder_.c_str()) == 0 || errno != EBUSY; };
    if (!folder_.empty()) (void)poll_until(removed);  // what was killed ends by and by
  }

  /// The command that starts a program in the group; it goes before the program.
  [[nodiscard]] std::vector<std::string> enter() const {
    return {"/bin/sh", "-c", "echo $$ >" + folder_ + "/cgroup.procs && exec \"$@\"", "sh"};
  }
  /// How many processes were killed because the group reached its limit.
  [[nodiscard]] std::uint64_t kills() const {
    for (const char* file : {"/memory.oom_control", "/memory.events"}) {
      std::ifstream stream(folder_ + file);
      std::string word;
      std::uint64_t number = 0;
      while (stream >> word >> number) {
        if (word == "oom_kill") return number;
      }
    }
    return 0;
  }

 private:
  explicit MemoryGroup(std::string folder) : folder_(std::move(folder)) {}

  std::string folder_;
};

}  // namespace kvd::test
