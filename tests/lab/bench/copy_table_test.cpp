#include "tests/lab/bench/copy_table.hpp"

#include <gtest/gtest.h>

namespace kvd::bench {
namespace {

CopyCell cell(Bytes segment, double engine, double kernels) {
  return {"h2d", 64, segment, engine, 0, kernels};
}

TEST(CopyTable, TheEngineIsAheadFromWhereItStaysAhead) {
  // The engine is ahead once at 4 KiB by accident, then behind, then ahead for good.
  const auto rows = crossovers({cell(kKiB * 4, 5, 4), cell(kKiB * 8, 6, 9), cell(kKiB * 16, 12, 12),
                                cell(kKiB * 32, 20, 12)});
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].engine_from, kKiB * 16);
  EXPECT_EQ(rows[0].peak_from, kKiB * 32) << "0.85 x 20 = 17";
}

TEST(CopyTable, WhereTheKernelIsAlwaysAheadThereIsNoCrossover) {
  const auto rows = crossovers({cell(kKiB * 4, 5, 9), cell(kKiB * 8, 6, 9)});
  EXPECT_EQ(rows[0].engine_from, Bytes(0));
}

TEST(CopyTable, ThePeakIsTheDirectionsNotTheCounts) {
  std::vector<CopyCell> cells = {cell(kKiB * 4, 50, 1)};
  cells.push_back({"h2d", 16, kKiB * 4, 10, 0, 1});
  cells.push_back({"d2h", 16, kKiB * 4, 10, 0, 1});
  for (const Crossover& row : crossovers(cells)) {
    const bool slow = row.direction == "h2d" && row.count == 16;
    EXPECT_EQ(row.peak_from, slow ? Bytes(0) : kKiB * 4) << row.direction << row.count;
  }
}

TEST(CopyTable, WhatIsWrittenNamesItsOrigin) {
  const std::string text =
      to_toml({"cuda", "a \"GPU\"", "u-u", 13000}, {{"h2d", 64, kKiB * 16, kKiB * 64}});
  EXPECT_NE(text.find("source = \"cuda\"\ndevice = \"a GPU\""), std::string::npos) << text;
  EXPECT_NE(text.find("engine_from = 16384\npeak_from = 65536\n"), std::string::npos);
}

}  // namespace
}  // namespace kvd::bench
