#include "tests/lint/tree_rules.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/lint/comment_rules.hpp"
#include "tests/unit/written_folder.hpp"

namespace kvd::lint {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(TestLists, NameEveryTestOfThisTree) {
  const auto findings = check_tests_are_listed(KVD_SOURCE_DIR);
  EXPECT_THAT(findings, IsEmpty()) << to_string(findings);
}

TEST(TestLists, MissATestThatNobodyBuilds) {
  test::WrittenFolder tree;
  tree.write("tests/unit/CMakeLists.txt", "kvd_test(a SOURCES a_test.cpp)  # not b_test.cpp\n");
  tree.write("tests/unit/a_test.cpp", "");
  tree.write("tests/unit/b_test.cpp", "");
  const auto findings = check_tests_are_listed(tree.path());
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_EQ(findings[0].file, "tests/unit/b_test.cpp");
}

TEST(TestLists, MissATestInPythonThatNobodyRuns) {
  test::WrittenFolder tree;
  tree.write("tests/python/CMakeLists.txt", "kvd_python_test(python.a a_test.py LABELS unit)\n");
  tree.write("tests/python/a_test.py", "");
  tree.write("tests/python/b_test.py", "");
  const auto findings = check_tests_are_listed(tree.path());
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_EQ(findings[0].file, "tests/python/b_test.py");
}

TEST(TestLists, AcceptAListInAFolderAbove) {
  test::WrittenFolder tree;
  tree.write("tests/unit/CMakeLists.txt", "kvd_test(a SOURCES\n  kvd/pool/a_test.cpp)\n");
  tree.write("tests/unit/kvd/pool/a_test.cpp", "");
  EXPECT_THAT(check_tests_are_listed(tree.path()), IsEmpty());
}

TEST(TestLists, DoNotTakeALongerNameForTheTest) {
  test::WrittenFolder tree;
  tree.write("tests/unit/CMakeLists.txt", "kvd_test(a SOURCES extra_a_test.cpp)\n");
  tree.write("tests/unit/extra_a_test.cpp", "");
  tree.write("tests/unit/a_test.cpp", "");
  EXPECT_THAT(check_tests_are_listed(tree.path()), SizeIs(1));
}

TEST(FolderSizes, OfThisTreeAreWithinBounds) {
  const auto findings = check_folder_sizes(KVD_SOURCE_DIR);
  EXPECT_THAT(findings, IsEmpty()) << to_string(findings);
}

TEST(FolderSizes, ReportAFolderThatNobodyTakesIn) {
  test::WrittenFolder tree;
  for (std::size_t i = 0; i <= kMostFiles; ++i) {
    tree.write("kvd/pool/part" + std::to_string(i) + ".cpp", "");
    tree.write("tests/lab/figures/part" + std::to_string(i) + ".cpp", "");
  }
  const auto findings = check_folder_sizes(tree.path());
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_EQ(findings[0].file, "kvd/pool");
}

TEST(CoreAsksForTraits, InThisTree) {
  const auto findings = check_core_asks_for_traits(KVD_SOURCE_DIR);
  EXPECT_THAT(findings, IsEmpty()) << to_string(findings);
}

TEST(CoreAsksForTraits, AndForNoName) {
  test::WrittenFolder tree;
  tree.write("kvd/core/a.cpp",
             "if (rotation->name() == \"lvf\") return;\n"
             "if (tuning.placement.policy != \"none\") return;\n"
             "if (admission->name().starts_with(\"layer\")) return;\n"
             "if (wanted.policy != tuning.policy) return;\n");
  tree.write("planner/policy/b.cpp", "if (policy == \"lvf\") return;\n");
  EXPECT_THAT(check_core_asks_for_traits(tree.path()), SizeIs(3));
}

/// What git keeps of this tree; none where it does not answer.
std::vector<std::filesystem::path> tracked_files() {
  const std::string command = "git -C '" KVD_SOURCE_DIR "' ls-files 2>/dev/null";
  FILE* const listing = ::popen(command.c_str(), "r");
  if (listing == nullptr) return {};
  std::vector<std::filesystem::path> files;
  std::array<char, 4096> line{};
  while (std::fgets(line.data(), line.size(), listing) != nullptr) {
    files.emplace_back(std::string(line.data(), std::strcspn(line.data(), "\n")));
  }
  return ::pclose(listing) == 0 ? files : std::vector<std::filesystem::path>();
}

/// The files of this tree. A released archive has no repository: there it is what the rooms hold.
std::vector<std::filesystem::path> files_of_this_tree() {
  const bool kept = std::filesystem::exists(KVD_SOURCE_DIR "/.git");
  return kept ? tracked_files() : files_under(KVD_SOURCE_DIR, [](const auto&) { return true; });
}

TEST(TrackedFiles, AreText) {
  const auto files = files_of_this_tree();
  ASSERT_FALSE(files.empty()) << "git does not list this repository's files";
  const auto findings = check_files_are_text(KVD_SOURCE_DIR, files);
  EXPECT_THAT(findings, IsEmpty()) << to_string(findings);
}

TEST(TrackedFiles, HaveCommentsThatAreSentences) {
  const auto findings = check_comments_are_sentences(KVD_SOURCE_DIR, files_of_this_tree());
  EXPECT_THAT(findings, IsEmpty()) << to_string(findings);
}

TEST(TrackedFiles, AreCounted) {
  if (!std::filesystem::exists(KVD_SOURCE_DIR "/.git")) GTEST_SKIP() << "counts what git keeps";
  EXPECT_EQ(std::system("sh '" KVD_SOURCE_DIR "/tests/lint/count.sh'"), 0);
}

TEST(TrackedFiles, AreNeitherBuiltNorLarge) {
  test::WrittenFolder tree;
  tree.write("text.cpp", "int main() {}\n");
  tree.write("program", std::string("\177ELF\0\1", 6));
  tree.write("trace.csv", std::string(std::size_t{600} * 1024, '1'));
  const auto findings =
      check_files_are_text(tree.path(), {"text.cpp", "program", "trace.csv", "removed.cpp"});
  ASSERT_THAT(findings, SizeIs(2));
  EXPECT_EQ(findings[0].file, "program");
  EXPECT_EQ(findings[1].file, "trace.csv");
}

}  // namespace
}  // namespace kvd::lint
