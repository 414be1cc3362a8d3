#include "tests/lint/comment_rules.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/written_folder.hpp"

namespace kvd::lint {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(Comments, AreAQuarterOfTheHeadersThatAreReadFirst) {
  EXPECT_THAT(first_headers(KVD_SOURCE_DIR), Contains("client_lib/include/kvd.h"));
  EXPECT_THAT(first_headers(KVD_SOURCE_DIR), Contains("kvd/core/controller.hpp"));
  EXPECT_GT(first_headers(KVD_SOURCE_DIR).size(), 20U);
  const auto findings = check_headers_are_explained(KVD_SOURCE_DIR);
  EXPECT_THAT(findings, IsEmpty()) << to_string(findings);
}

TEST(Comments, AreCountedByLine) {
  EXPECT_EQ(comment_percent("/// a\nint x;  // b\n\nint y;\nint z;\n"), 50);
  EXPECT_EQ(comment_percent("/* a\n * b\n */\nint x;\n/* c */ int y;\nint z;\n"), 66);
  EXPECT_EQ(comment_percent("int x;\n"), 0);
}

TEST(Comments, AreMissedInTheHeadersOfTheTableAlone) {
  test::WrittenFolder tree;
  tree.write(
      "CONTRIBUTING.md",
      "## I want to change …\n\n| … | folder | start reading at |\n|---|---|---|\n"
      "| a thing | `kvd/pool`, `kvd/core` | `pool.hpp`, `kvd/store/cache/cache.hpp`, `main.cpp` |\n"
      "\n## Other\n| a thing | `kvd/pool` | `other.hpp` |\n");
  tree.write("kvd/pool/pool.hpp", "int bare;\n");
  tree.write("kvd/pool/other.hpp", "int bare;\n");
  tree.write("kvd/store/cache/cache.hpp", "/// Said.\nint x;\n");
  tree.write("client_lib/include/kvd.h", "int bare;\n");
  EXPECT_THAT(
      first_headers(tree.path()),
      ElementsAre("client_lib/include/kvd.h", "kvd/pool/pool.hpp", "kvd/store/cache/cache.hpp"));
  const auto findings = check_headers_are_explained(tree.path());
  ASSERT_THAT(findings, SizeIs(2));
  EXPECT_EQ(findings[0].file, "client_lib/include/kvd.h");
  EXPECT_EQ(findings[1].file, "kvd/pool/pool.hpp");
}

TEST(Comments, AreMissedWhereTheyOpenLikeNoSentence) {
  test::WrittenFolder tree;
  tree.write("a.cpp",
             "/// Of a segment.\n"
             "int size;  ///< Those of the node.\n"
             "// The first line of a comment, and then some\n"
             "// Of these it is not the first.\n"
             "// Often, and Whoever asks.\n"
             "const char* text = \"// Who asks\";\n");
  tree.write("b.py", "# So many tokens.\nx = 1  # That of a\ny = 7 // 2\n");
  tree.write("c.md", "# Of documents\n");
  tree.write("d.py", "def f():\n    \"\"\"So that it is there.\"\"\"\n    \"\"\"Some.\"\"\"\n");
  tree.write("e.js", "/** Who asks, and when. */\n/* Some. */\n");
  const auto findings =
      check_comments_are_sentences(tree.path(), {"a.cpp", "b.py", "c.md", "d.py", "e.js"});
  ASSERT_THAT(findings, SizeIs(6));
  EXPECT_EQ(findings[0].line, 1U);
  EXPECT_EQ(findings[1].line, 2U);
  EXPECT_EQ(findings[2].file, "b.py");
  EXPECT_EQ(findings[3].line, 2U);
  EXPECT_EQ(findings[4].file, "d.py");
  EXPECT_EQ(findings[4].line, 2U);
  EXPECT_EQ(findings[5].file, "e.js");
}

}  // namespace
}  // namespace kvd::lint
