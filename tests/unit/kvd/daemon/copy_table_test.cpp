#include "kvd/daemon/config/copy_table.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvd/daemon/config/config.hpp"
#include "tests/unit/kvd/daemon/config_fixture.hpp"

namespace kvd::daemon {
namespace {
using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* kHead = "source = \"cuda\"\ndevice = \"a GPU\"\n";

std::string row(const std::string& direction, int count, int engine_from, int peak_from) {
  return "[[crossover]]\ndirection = \"" + direction + "\"\ncount = " + std::to_string(count) +
         "\nengine_from = " + std::to_string(engine_from) +
         "\npeak_from = " + std::to_string(peak_from) + "\n";
}

class CopyTableTest : public testing::Test {
 protected:
  Result<CopyTable> read(const std::string& text) {
    return read_copy_table(folder_.write("table.toml", text));
  }
  std::string fault(const std::string& text) {
    const auto table = read(text);
    if (table.ok()) return "no fault";
    EXPECT_EQ(table.error().code, ErrorCode::kInvalidArgument);
    return table.error().message;
  }
  TemporaryFolder folder_;
};

TEST_F(CopyTableTest, TakesTheSlowerDirectionAtTheLargestCountThatReachedIt) {
  const auto table = read(kHead + row("h2d", 16, 4096, 8192) + row("h2d", 1024, 16384, 65536) +
                          row("h2d", 16384, 32768, 0) + row("d2h", 1024, 8192, 131072) +
                          row("duplex", 16384, 1 << 20, 1 << 20));
  ASSERT_TRUE(table.ok()) << table.error().message;
  EXPECT_EQ(table->source, "cuda");
  EXPECT_EQ(table->device, "a GPU");
  EXPECT_EQ(table->sizes.good_slot, 128 * kKiB) << "d2h; duplex is no bound for one direction";
  EXPECT_EQ(table->sizes.engine_from, 32 * kKiB);
}

TEST_F(CopyTableTest, OnTheHostThereIsNoKernelToPrefer) {
  const auto table = read("source = \"host\"\n" + row("host", 64, 4096, 1 << 20));
  ASSERT_TRUE(table.ok()) << table.error().message;
  EXPECT_EQ(table->sizes.good_slot, kMiB);
  EXPECT_EQ(table->sizes.engine_from, Bytes(0));
}

TEST_F(CopyTableTest, FaultsNameTheFileTheLineAndTheRemedy) {
  const std::string good = row("h2d", 64, 4096, 8192);
  EXPECT_THAT(fault("source = 3\n" + good), HasSubstr("source must be"));
  EXPECT_THAT(fault(kHead), HasSubstr("no [[crossover]]"));
  EXPECT_THAT(fault(kHead + row("up", 64, 1, 1)), HasSubstr("table.toml:3: direction must be"));
  EXPECT_THAT(fault(kHead + row("h2d", 64, -1, 1)), HasSubstr("engine_from must be a number"));
  EXPECT_THAT(fault(kHead + row("h2d", 64, 1, 2000000000)), HasSubstr("peak_from must be"));
  EXPECT_THAT(fault(kHead + row("h2d", 64, 4096, 0)), HasSubstr("no row has a peak_from"));
  EXPECT_THAT(fault("source = \"cu"), HasSubstr("table.toml:1: "));
  EXPECT_THAT(fault(kHead), HasSubstr("kvd-bench copy --matrix"));
  EXPECT_THAT(read_copy_table(folder_.root() + "/none").error().message, HasSubstr("none"));
}

TEST_F(CopyTableTest, ABadTableIsAFaultOfTheConfiguration) {
  Config config;
  config.copy_table = folder_.write("bad.toml", "source = 1\n");
  ASSERT_EQ(faults(config).size(), 1u);
  EXPECT_THAT(faults(config)[0], HasSubstr("copy.table: "));
  config.copy_table = folder_.write("good.toml", kHead + row("h2d", 64, 4096, 8192));
  EXPECT_THAT(faults(config), IsEmpty());
}

TEST(DefaultGroup, IsTheSmallestThatMakesAGoodSlotAndFitsIntoASlab) {
  const Bytes layer = 64 * kKiB;
  EXPECT_EQ(default_group(32, layer, 64 * kMiB, 256 * kKiB), 4u);
  EXPECT_EQ(default_group(32, layer, 64 * kMiB, kMiB), 16u);
  EXPECT_EQ(default_group(30, layer, 64 * kMiB, 256 * kKiB), 5u) << "4 does not divide 30";
  EXPECT_EQ(default_group(32, layer, 64 * kMiB, 8 * kMiB), 32u) << "all layers are not enough";
  EXPECT_EQ(default_group(32, layer, 512 * kKiB, kMiB), 8u) << "a slab holds no better one";
  EXPECT_EQ(default_group(32, layer, 32 * kKiB, kMiB), 1u) << "no slot fits: refused later";
}

TEST(SlotAdvice, IsGivenBelowTheCrossoverAlone) {
  core::ModelClass shape;
  shape.layers = 32;
  shape.layers_per_block = 1;
  shape.block_tokens = 16;
  shape.bytes_per_token_per_layer = kKiB;
  CopySizes sizes;
  EXPECT_THAT(slot_advice(shape, sizes), IsEmpty()) << "nothing is known";
  sizes.engine_from = 16 * kKiB;
  EXPECT_THAT(slot_advice(shape, sizes), IsEmpty());
  sizes.engine_from = 16 * kKiB + Bytes(1);
  EXPECT_THAT(slot_advice(shape, sizes), HasSubstr("layers_per_block"));
}

}  // namespace
}  // namespace kvd::daemon
