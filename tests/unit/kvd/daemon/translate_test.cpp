#include "kvd/daemon/sessions/translate.hpp"

#include <gtest/gtest.h>

namespace kvd::daemon {
namespace {

/// Layers in a block of a model that leaves this to kvd.
std::uint32_t layers_per_block(std::uint32_t layers, Bytes per_layer, Bytes slab) {
  wire::ModelShape shape{};
  shape.layers = layers;
  shape.block_tokens = 16;
  shape.bytes_per_token_per_layer = static_cast<std::uint64_t>(per_layer.value / 16);
  const auto complete = complete_shape(shape, slab);
  return complete.ok() ? (*complete)->layers_per_block : 0;
}

TEST(CompleteShape, LayersMakeTheSmallestGoodSlotThatFitsIntoASlab) {
  EXPECT_EQ(layers_per_block(32, 64 * kKiB, 64 * kMiB), 4u);
  EXPECT_EQ(layers_per_block(32, 16 * kKiB, 64 * kMiB), 16u);
  EXPECT_EQ(layers_per_block(30, 64 * kKiB, 64 * kMiB), 5u) << "4 does not divide 30";
  EXPECT_EQ(layers_per_block(32, 4 * kKiB, 64 * kMiB), 32u) << "all layers are not enough";
  EXPECT_EQ(layers_per_block(32, 64 * kKiB, 128 * kKiB), 2u) << "a slab holds no better one";
  EXPECT_EQ(layers_per_block(32, 64 * kKiB, 32 * kKiB), 0u) << "no slot fits";
}

}  // namespace
}  // namespace kvd::daemon
