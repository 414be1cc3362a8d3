#include "kvd/ctl/table.hpp"

#include <gtest/gtest.h>

namespace kvd::ctl {
namespace {

TEST(Table, NumbersStandRightAndTheRestLeft) {
  Table sut({"NAME", "BYTES", "X"});
  sut.add({"a", "1.5 KiB", "-"});
  sut.add({"longer", "10 B", "4"});
  EXPECT_EQ(sut.render(),
            "NAME      BYTES  X\n"
            "a       1.5 KiB  -\n"
            "longer     10 B  4\n");
}

TEST(Table, OfOnlyAHead) {
  Table sut({"A", "B"});
  EXPECT_EQ(sut.rows(), 0u);
  EXPECT_EQ(sut.render(), "A  B\n");
}

TEST(BytesText, PicksTheUnit) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1024), "1 KiB");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(bytes_text(256.0 * 1024 * 1024), "256 MiB");
  EXPECT_EQ(bytes_text(1024.0 * 1024 * 1024 - 1), "1 GiB");
  EXPECT_EQ(bytes_text(1e20), "88818 PiB");
}

TEST(SecondsText, PicksTheUnit) {
  EXPECT_EQ(seconds_text(0), "0 s");
  EXPECT_EQ(seconds_text(0.00025), "250 us");
  EXPECT_EQ(seconds_text(0.0125), "12.5 ms");
  EXPECT_EQ(seconds_text(0.1), "100 ms");
  EXPECT_EQ(seconds_text(0.9999), "1 s");
  EXPECT_EQ(seconds_text(-3.25), "-3.2 s");
  EXPECT_EQ(seconds_text(303), "5m 03s");
  EXPECT_EQ(seconds_text(7500), "2h 05m");
}

}  // namespace
}  // namespace kvd::ctl
