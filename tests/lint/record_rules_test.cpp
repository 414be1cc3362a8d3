#include "tests/lint/record_rules.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/written_folder.hpp"

namespace kvd::lint {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// What is still to be rebuilt, with its size today. Entries shrink and go; none is added.
const Excesses& large_records() {
  static const Excesses kLarge = {
      // One value for each setting, metric or figure: they are lists, and nobody keeps one in mind.
      {"kvd/admin/link/snapshot.hpp: Snapshot", kAList},
      {"kvd/core/door/config.hpp: Config", kAList},
      {"kvd/core/door/status.hpp: ControllerStatus", kAList},
      {"kvd/core/door/status.hpp: Counters", kAList},
      {"kvd/daemon/config/config.hpp: Config", kAList},
      {"kvd/daemon/config/config.hpp: Invocation", kAList},
      {"kvd/sim/run/metrics.hpp: Metrics", kAList},
      {"kvd/sim/run/metrics.hpp: Summary", kAList},
      {"kvd/sim/run/setting.hpp: Setting", kAList},
      // Half of it is what answers about layers are based on, beside what it is about.
      {"kvd/core/ledger/request.hpp: Request", 77},
      {"kvd/core/ledger/request.hpp: PlacedRequest", 43},
      // What an engine said when it attached, and all of its state since.
      {"kvd/core/ledger/session.hpp: Session", 96},
      // The parts of the Controller, and the state that they share.
      {"kvd/core/moves/ground.hpp: Ground", 63},
      {"kvd/core/parts.hpp: Parts", 53},
  };
  return kLarge;
}
/// A request moves through claims, swaps, streams and rotation, and each ends what the one before
/// began. To let one part write on behalf of the others would hide who asks for it.
const Excesses& shared_fields() {
  static const Excesses kShared = {
      {"fresh", 3},       {"layers.away", 3}, {"layerwise", 3},        {"leaving", 4},
      {"order.skips", 3}, {"place", 4},       {"progress.planned", 4}, {"progress.tokens", 3},
      {"promised", 3},    {"synced", 3},      {"times.run_since", 3},  {"verdict", 6},
  };
  return kShared;
}

TEST(LeafFields, OfThisTreeAreWithinBounds) {
  const auto findings = check_leaf_fields(KVD_SOURCE_DIR, large_records());
  EXPECT_THAT(findings, IsEmpty()) << to_string(findings);
}

TEST(Writers, OfThisTreesRequestsAreWithinBounds) {
  const auto findings = check_writers(KVD_SOURCE_DIR, shared_fields());
  EXPECT_THAT(findings, IsEmpty()) << to_string(findings);
}

std::string fields(const std::string& name, std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += "  int " + name + std::to_string(i) + ";\n";
  return text;
}

TEST(LeafFields, CountThoseOfBasesAndOfStructsInside) {
  test::WrittenFolder tree;
  tree.write("kvd/pool/inner.hpp", "struct Inner {\n" + fields("a", 20) + "};\n");
  const auto write = [&](std::size_t own) {
    tree.write("kvd/pool/a.hpp", "class Hidden {\n" + fields("h", 9) + "};\n" + "struct Base {\n" +
                                     fields("b", 9) + "};\n" +
                                     "struct A : Base {\n  Inner inner;\n  Hidden hidden;\n" +
                                     "  struct { int x, y; } both;\n" + fields("c", own) + "};\n");
  };
  write(kMostLeaves - 32);
  EXPECT_THAT(check_leaf_fields(tree.path(), {}), IsEmpty());
  write(kMostLeaves - 31);
  const auto findings = check_leaf_fields(tree.path(), {});
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_EQ(findings[0].file, "kvd/pool/a.hpp: A");
  EXPECT_THAT(findings[0].message, HasSubstr("41 values"));
  EXPECT_THAT(check_leaf_fields(tree.path(), {{"kvd/pool/a.hpp: A", 41}}), IsEmpty());
  EXPECT_THAT(check_leaf_fields(tree.path(), {{"kvd/pool/a.hpp: A", 42}}), SizeIs(1))
      << "it has shrunk";
}

TEST(Writers, AreCountedByPart) {
  test::WrittenFolder tree;
  tree.write("kvd/core/ledger/request.hpp",
             "struct Order { int claim; int skips; };\n"
             "struct Request { int place; Order order; };\n");
  tree.write("kvd/core/a.cpp", "request.place = 1; ++request->order.skips;\n");
  tree.write("kvd/core/a.hpp", "r.place = 1; r.order.claim = 2;\n");
  tree.write("kvd/core/b.cpp", "if (r.place == 1) order.place = 2; r.order.skips += 1;\n");
  EXPECT_THAT(check_writers(tree.path(), {}), IsEmpty());
  tree.write("kvd/core/c.cpp", "one->order.skips = 2;\n");
  const auto findings = check_writers(tree.path(), {});
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_EQ(findings[0].file, "order.skips");
  EXPECT_THAT(check_writers(tree.path(), {{"order.skips", 3}}), IsEmpty());
}

}  // namespace
}  // namespace kvd::lint
