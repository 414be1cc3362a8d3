#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <iomanip>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace kvd::test {

/// Files by name. In a golden file each is a line `file NAME SIZE`, then 16 bytes a line in hex
/// after their offset. Lines of zeros are left out, and `#` starts a comment.
using FrozenFiles = std::map<std::string, std::vector<std::byte>>;

inline std::string frozen_path(const std::string& name) {
  return std::string(KVD_FROZEN_DIR "/") + name + ".hex";
}

inline std::string to_text(const FrozenFiles& files) {
  constexpr std::size_t kLine = 16;
  std::ostringstream text;
  text << std::setfill('0');
  for (const auto& [name, bytes] : files) {
    text << "file " << name << ' ' << std::dec << bytes.size() << '\n' << std::hex;
    for (std::size_t at = 0; at < bytes.size(); at += kLine) {
      const auto end = std::min(bytes.size(), at + kLine);
      const auto from = bytes.begin() + static_cast<std::ptrdiff_t>(at);
      const auto to = bytes.begin() + static_cast<std::ptrdiff_t>(end);
      if (std::all_of(from, to, [](std::byte byte) { return byte == std::byte{}; })) continue;
      text << std::setw(8) << at << ':';
      std::for_each(from, to, [&](std::byte byte) {
        text << ' ' << std::setw(2) << std::to_integer<int>(byte);
      });
      text << '\n';
    }
  }
  return text.str();
}

/// What a golden file holds; nothing where there is none.
inline FrozenFiles read_frozen(const std::string& name) {
  std::ifstream file(frozen_path(name));
  FrozenFiles files;
  std::vector<std::byte>* bytes = nullptr;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string first;
    if (!(words >> first) || first[0] == '#') continue;
    if (first == "file") {
      std::size_t size = 0;
      words >> first >> size;
      bytes = &files[first];
      bytes->resize(size);
      continue;
    }
    std::size_t at = std::stoul(first, nullptr, 16);
    for (std::string number; words >> number; ++at) {
      bytes->at(at) = static_cast<std::byte>(std::stoul(number, nullptr, 16));
    }
  }
  return files;
}

/// `files` are what today's code writes. They must be the golden file's, byte for byte.
inline void expect_frozen(const std::string& name, const FrozenFiles& files) {
  if (std::getenv("KVDTEST_FREEZE") != nullptr) {
    std::ofstream(frozen_path(name))
        << "# Written by KVDTEST_FREEZE=1 frozen_test, read by frozen_test.\n"
        << to_text(files);
  }
  EXPECT_EQ(to_text(files), to_text(read_frozen(name)))
      << "kvd writes other bytes than the version that is frozen in " << frozen_path(name)
      << ": what is stored by installed kvds would be misread. Give the format its next version in "
         "its FORMAT.md and code. Then KVDTEST_FREEZE=1 build/release/tests/frozen_test writes the "
         "golden file anew, and CHANGELOG.md says what becomes of what older kvds have stored.";
}

}  // namespace kvd::test
