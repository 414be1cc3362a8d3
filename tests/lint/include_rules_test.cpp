#include "tests/lint/include_rules.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/unit/written_folder.hpp"

namespace kvd::lint {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(IncludeArrows, HoldInThisTree) {
  const auto findings = check_includes(KVD_SOURCE_DIR);
  EXPECT_THAT(findings, IsEmpty()) << to_string(findings);
}

TEST(IncludeArrows, GoInNoCircle) {
  const auto findings = check_circles(KVD_SOURCE_DIR);
  EXPECT_THAT(findings, IsEmpty()) << to_string(findings);
}

TEST(IncludeArrows, InstalledHeadersNeedNothingElse) {
  const auto findings = check_public_headers(KVD_SOURCE_DIR);
  EXPECT_THAT(findings, IsEmpty()) << to_string(findings);
}

TEST(IncludeArrows, ReportFileAndLineOfAForbiddenRoom) {
  test::WrittenFolder tree;
  tree.write("kvd/core/controller.hpp", "#pragma once\n");
  tree.write("kvd/pool/pool.cpp", "#include <vector>\n\n#  include \"kvd/core/controller.hpp\"\n");
  const auto findings = check_includes(tree.path());
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_THAT(findings[0].to_string(), HasSubstr("kvd/pool/pool.cpp:3: kvd/pool/ may not include"));
}

TEST(IncludeArrows, AllowTheRoomItselfItsArrowsAndTheVocabulary) {
  test::WrittenFolder tree;
  tree.write("ipc/vocabulary/ids.hpp", "");
  tree.write("kvd/pool/pool.hpp", "#include \"ipc/vocabulary/ids.hpp\"\n");
  tree.write("kvd/core/controller.hpp", "#include \"kvd/pool/pool.hpp\"\n");
  tree.write("kvd/core/controller.cpp", "#include \"kvd/core/controller.hpp\"\n");
  const auto findings = check_includes(tree.path());
  EXPECT_THAT(findings, IsEmpty()) << to_string(findings);
}

TEST(IncludeArrows, LetTheMoverSeeOnlyTheEffectsOfTheCore) {
  test::WrittenFolder tree;
  tree.write("kvd/core/door/effects.hpp", "");
  tree.write("kvd/core/controller.hpp", "");
  tree.write("kvd/mover/a.cpp", "#include \"kvd/core/door/effects.hpp\"\n");
  tree.write("kvd/mover/b.cpp", "#include \"kvd/core/controller.hpp\"\n");
  const auto findings = check_includes(tree.path());
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_EQ(findings[0].file, "kvd/mover/b.cpp");
}

TEST(IncludeArrows, LetAChamberSeeThoseBelowItAlone) {
  test::WrittenFolder tree;
  tree.write("kvd/core/moves/supply.hpp", "");
  tree.write("kvd/core/deciding/rotation.hpp", "#include \"kvd/core/moves/supply.hpp\"\n");
  tree.write("kvd/core/parts.hpp", "#include \"kvd/core/deciding/rotation.hpp\"\n");
  EXPECT_THAT(check_includes(tree.path()), IsEmpty());
  tree.write("kvd/core/moves/swaps.cpp", "#include \"kvd/core/deciding/rotation.hpp\"\n");
  tree.write("kvd/core/talk/steps.cpp", "#include \"kvd/core/parts.hpp\"\n");
  tree.write("kvd/core/new/part.cpp", "#include \"kvd/core/moves/supply.hpp\"\n");
  const auto findings = check_includes(tree.path());
  ASSERT_THAT(findings, SizeIs(3)) << to_string(findings);
  EXPECT_THAT(findings[0].to_string(), HasSubstr("moves/swaps.cpp:1: "));
  EXPECT_THAT(findings[1].message, HasSubstr("no place in the chambers"));
  EXPECT_THAT(findings[2].to_string(), HasSubstr("talk/steps.cpp:1: "));
}

TEST(IncludeArrows, ReportACircleOfHeaders) {
  test::WrittenFolder tree;
  tree.write("kvd/pool/a.hpp", "#include \"kvd/pool/b.hpp\"\n");
  tree.write("kvd/pool/b.hpp", "");
  tree.write("kvd/pool/b.cpp", "#include \"kvd/pool/a.hpp\"\n#include \"kvd/pool/b.hpp\"\n");
  const auto findings = check_circles(tree.path());
  ASSERT_THAT(findings, SizeIs(1)) << to_string(findings);
  EXPECT_THAT(findings[0].message, HasSubstr("kvd/pool/a -> kvd/pool/b -> kvd/pool/a"));
}

TEST(IncludeArrows, KeepEachThirdPartyInItsRoom) {
  test::WrittenFolder tree;
  tree.write("kvd/daemon/loop.cpp", "#include <zmq.hpp>\n");
  tree.write("ipc/transport/router.cpp", "#include <zmq.hpp>\n#include <sys/socket.h>\n");
  const auto findings = check_includes(tree.path());
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_EQ(findings[0].file, "kvd/daemon/loop.cpp");
}

TEST(IncludeArrows, RefuseLibrariesAndFoldersNobodyPlaced) {
  test::WrittenFolder tree;
  tree.write("kvd/pool/pool.cpp", "#include <absl/strings/str_cat.h>\n");
  tree.write("kvd/newroom/a.cpp", "#include \"kvd/newroom/a.hpp\"\n");
  tree.write("kvd/newroom/a.hpp", "");
  const auto findings = check_includes(tree.path());
  ASSERT_THAT(findings, SizeIs(2)) << to_string(findings);
  EXPECT_THAT(findings[0].message, HasSubstr("no line in the arrow table"));
  EXPECT_THAT(findings[1].message, HasSubstr("unknown header absl/strings/str_cat.h"));
}

TEST(IncludeArrows, KeepTestsOutOfTheProduct) {
  test::WrittenFolder tree;
  tree.write("tests/support/clock.hpp", "");
  tree.write("kvd/daemon/main.cpp", "#include \"tests/support/clock.hpp\"\n");
  tree.write("tests/unit/a_test.cpp", "#include \"tests/support/clock.hpp\"\n");
  EXPECT_THAT(check_includes(tree.path()), SizeIs(1));
}

TEST(IncludeArrows, RefuseAThirdPartyInAnInstalledHeader) {
  test::WrittenFolder tree;
  tree.write("client_lib/include/kvd.h", "#include <stdint.h>\n");
  tree.write("client_lib/include/kvd_client/client.hpp",
             "#include <string>\n#include \"kvd.h\"\n#include \"ipc/vocabulary/ids.hpp\"\n");
  const auto findings = check_public_headers(tree.path());
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_EQ(findings[0].line, 3u);
}

TEST(IncludeArrows, DoNotReadBuildTreesOrPackages) {
  test::WrittenFolder tree;
  tree.write("client_lib/llama/node_modules/x/a.h", "#include <absl/a.h>\n");
  tree.write("client_lib/build/a.h", "#include <absl/a.h>\n");
  EXPECT_THAT(check_includes(tree.path()), IsEmpty());
}

}  // namespace
}  // namespace kvd::lint
