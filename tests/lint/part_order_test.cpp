#include "tests/lint/part_order.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/lint/temporary_tree.hpp"

namespace kvd::lint {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(PartOrder, HoldsInThisTree) {
  const auto findings = check_part_order(KVD_SOURCE_DIR);
  EXPECT_THAT(findings, IsEmpty()) << to_string(findings);
}

TEST(PartOrder, AllowsWhatStandsAbove) {
  TemporaryTree tree;
  tree.write("kvd/core/rotation.cpp",
             "#include \"kvd/core/rotation.hpp\"\n#include \"kvd/core/supply.hpp\"\n"
             "#include \"kvd/store/store.hpp\"\n");
  EXPECT_THAT(check_part_order(tree.root()), IsEmpty());
}

TEST(PartOrder, ReportsAPartThatKnowsOneBelowIt) {
  TemporaryTree tree;
  tree.write("kvd/core/supply.hpp", "#pragma once\n#include \"kvd/core/rotation.hpp\"\n");
  const auto findings = check_part_order(tree.root());
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_THAT(findings[0].to_string(), HasSubstr("supply.hpp:2: supply may not know rotation"));
}

TEST(PartOrder, ReportsAPartWithoutAPlace) {
  TemporaryTree tree;
  tree.write("kvd/store/somewhere.hpp", "#pragma once\n");
  const auto findings = check_part_order(tree.root());
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_THAT(findings[0].to_string(), HasSubstr("has no place"));
}

}  // namespace
}  // namespace kvd::lint
