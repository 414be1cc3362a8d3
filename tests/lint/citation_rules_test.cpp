#include "tests/lint/citation_rules.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/written_folder.hpp"

namespace kvd::lint {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(Citations, OfThisTreeCanBeReadInIt) {
  const auto findings = check_citations(KVD_SOURCE_DIR);
  EXPECT_THAT(findings, IsEmpty()) << to_string(findings);
}

TEST(Citations, RefuseATextThatIsNotInTheRepository) {
  test::WrittenFolder tree;
  tree.write("kvd/core/a.hpp", "/// Source: kvd design (architecture section 4).\n");
  tree.write("planner/policy/b.hpp", "\n/// Source: SuperInfer (SI-3); policy-shapes 2.3.\n");
  const auto findings = check_citations(tree.path());
  ASSERT_THAT(findings, SizeIs(2)) << to_string(findings);
  EXPECT_THAT(findings[0].to_string(), HasSubstr("kvd/core/a.hpp:1: cites"));
  EXPECT_THAT(findings[1].to_string(), HasSubstr("planner/policy/b.hpp:2: cites"));
}

TEST(Citations, RefuseAPartThatTheDocumentLacks) {
  test::WrittenFolder tree;
  tree.write("kvd/DESIGN.md", "# Design\n\n## Words\n\nThreads are many.\n");
  tree.write("planner/MODEL.md", "**SLOs** stay outside\n");
  tree.write("kvd/core/a.hpp",
             "/// kvd/DESIGN.md \"Words\"\n/// MODEL.md \"SLOs\"\n/// DESIGN.md \"Words\", "
             "\"Threads\"\n");
  const auto findings = check_citations(tree.path());
  ASSERT_THAT(findings, SizeIs(1)) << to_string(findings);
  EXPECT_THAT(findings[0].to_string(), HasSubstr("a.hpp:3: kvd/DESIGN.md has no part \"Threads\""));
}

TEST(Citations, LetAWordBe) {
  test::WrittenFolder tree;
  tree.write("client_lib/engine/a.cpp", "text(\"general.architecture\");\n");
  tree.write("kvd/core/a.cpp", "// SI-units, OFF-1\n");
  EXPECT_THAT(check_citations(tree.path()), IsEmpty());
}

}  // namespace
}  // namespace kvd::lint
