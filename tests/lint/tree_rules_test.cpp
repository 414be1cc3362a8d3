#include "tests/lint/tree_rules.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/lint/temporary_tree.hpp"

namespace kvd::lint {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(TestLists, NameEveryTestOfThisTree) {
  const auto findings = check_tests_are_listed(KVD_SOURCE_DIR);
  EXPECT_THAT(findings, IsEmpty()) << to_string(findings);
}

TEST(TestLists, MissATestThatNobodyBuilds) {
  TemporaryTree tree;
  tree.write("tests/unit/CMakeLists.txt", "kvd_test(a SOURCES a_test.cpp)  # not b_test.cpp\n");
  tree.write("tests/unit/a_test.cpp", "");
  tree.write("tests/unit/b_test.cpp", "");
  const auto findings = check_tests_are_listed(tree.root());
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_EQ(findings[0].file, "tests/unit/b_test.cpp");
}

TEST(TestLists, AcceptAListInAFolderAbove) {
  TemporaryTree tree;
  tree.write("tests/unit/CMakeLists.txt", "kvd_test(a SOURCES\n  kvd/pool/a_test.cpp)\n");
  tree.write("tests/unit/kvd/pool/a_test.cpp", "");
  EXPECT_THAT(check_tests_are_listed(tree.root()), IsEmpty());
}

TEST(TestLists, DoNotTakeALongerNameForTheTest) {
  TemporaryTree tree;
  tree.write("tests/unit/CMakeLists.txt", "kvd_test(a SOURCES extra_a_test.cpp)\n");
  tree.write("tests/unit/extra_a_test.cpp", "");
  tree.write("tests/unit/a_test.cpp", "");
  EXPECT_THAT(check_tests_are_listed(tree.root()), SizeIs(1));
}

TEST(CoreAsksForTraits, InThisTree) {
  const auto findings = check_core_asks_for_traits(KVD_SOURCE_DIR);
  EXPECT_THAT(findings, IsEmpty()) << to_string(findings);
}

TEST(CoreAsksForTraits, AndForNoName) {
  TemporaryTree tree;
  tree.write("kvd/core/a.cpp",
             "if (rotation->name() == \"lvf\") return;\n"
             "if (tuning.placement.policy != \"none\") return;\n"
             "if (admission->name().starts_with(\"layer\")) return;\n"
             "if (wanted.policy != tuning.policy) return;\n");
  tree.write("planner/policy/b.cpp", "if (policy == \"lvf\") return;\n");
  EXPECT_THAT(check_core_asks_for_traits(tree.root()), SizeIs(3));
}

}  // namespace
}  // namespace kvd::lint
