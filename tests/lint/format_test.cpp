#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <memory>
#include <string>

#include "tests/lint/source_tree.hpp"
#include "tests/unit/written_folder.hpp"

namespace kvd::lint {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Other versions lay out some lines differently; this is the one of Debian 12.
constexpr const char* kClangFormatVersion = "version 14.";

/// What `command` prints, both streams.
std::string output_of(const std::string& command) {
  const auto close = [](FILE* pipe) { pclose(pipe); };
  const std::unique_ptr<FILE, decltype(close)> pipe(popen((command + " 2>&1").c_str(), "r"), close);
  std::string output;
  std::array<char, 4096> buffer;
  while (pipe && fgets(buffer.data(), buffer.size(), pipe.get()) != nullptr) {
    output += buffer.data();
  }
  return output;
}

/// clang-format's complaints about the sources under `root`; empty when all are in shape.
std::string format_complaints(const std::filesystem::path& root) {
  std::string command =
      "cd '" + root.string() +
      "' && clang-format --dry-run -Werror --style='file:" + std::string(KVD_SOURCE_DIR) +
      "/.clang-format'";
  for (const auto& file : files_under(root, is_source)) {
    command += " '" + file.string() + "'";
  }
  return output_of(command);
}

class Format : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string version = output_of("clang-format --version");
    if (version.find(kClangFormatVersion) == std::string::npos) {
      GTEST_SKIP() << "needs clang-format 14 (sh deploy/ci/install-deps.sh), found: " << version;
    }
  }
};

TEST_F(Format, EverySourceIsAsClangFormatWritesIt) {
  EXPECT_THAT(format_complaints(KVD_SOURCE_DIR), IsEmpty()) << "run: make format";
}

TEST_F(Format, ComplainsAboutASourceOutOfShape) {
  test::WrittenFolder tree;
  tree.write("kvd/pool/a.cpp", "int   main( ){return 0;}\n");
  EXPECT_THAT(format_complaints(tree.path()), HasSubstr("kvd/pool/a.cpp:1"));
}

}  // namespace
}  // namespace kvd::lint
