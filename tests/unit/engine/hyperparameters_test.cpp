#include "client_lib/engine/model/hyperparameters.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/engine/gguf_bytes.hpp"

namespace kvd::engine {
namespace {

using testing::HasSubstr;

std::string refusal_of(const std::string& shape) {
  const auto parsed = parse_random_model(shape);
  return parsed.ok() ? "" : parsed.error().message;
}

TEST(RandomModel, TakesWhatItIsGivenAndFillsTheRest) {
  const auto shape = parse_random_model("layers=3,hidden=96,heads=6,kv_heads=3,seed=9");
  ASSERT_TRUE(shape.ok()) << shape.error().message;
  EXPECT_EQ(shape->model.layers, 3U);
  EXPECT_EQ(shape->model.head_dim, 16U);
  EXPECT_EQ(shape->model.rope_dim, 16U);
  EXPECT_EQ(shape->model.vocabulary, 256U);
  EXPECT_EQ(shape->seed, 9U);
  EXPECT_TRUE(parse_random_model("").ok());
}

TEST(RandomModel, RefusesWhatIsNoModel) {
  EXPECT_THAT(refusal_of("layers"), HasSubstr("no NAME=NUMBER"));
  EXPECT_THAT(refusal_of("layers=4x"), HasSubstr("no NAME=NUMBER"));
  EXPECT_THAT(refusal_of("depth=4"), HasSubstr("\"depth\""));
  EXPECT_THAT(refusal_of("layers=0"), HasSubstr("layers is 0"));
  EXPECT_THAT(refusal_of("heads=0"), HasSubstr("heads is 0"));
  EXPECT_THAT(refusal_of("heads=6,kv_heads=4"), HasSubstr("no multiple"));
  EXPECT_THAT(refusal_of("layers=4294967296"), HasSubstr("layers is 4294967296"));
  EXPECT_THAT(refusal_of("heads=512,kv_heads=512,head_dim=1024"), HasSubstr("1 MiB"));
}

TEST(ModelFile, OfAnotherKindIsRefused) {
  const auto refusal = [](const GgufBytes& bytes) {
    const auto model = read_hyperparameters(*Gguf::parse(bytes.bytes()));
    return model.ok() ? "" : model.error().message;
  };
  EXPECT_THAT(refusal(GgufBytes().header(0, 1).text("general.architecture", "mamba")),
              HasSubstr("\"mamba\""));
  EXPECT_THAT(refusal(GgufBytes().header(0, 1).text("general.architecture", "llama")),
              HasSubstr("llama.block_count"));
  EXPECT_THAT(refusal(GgufBytes()
                          .header(0, 2)
                          .text("general.architecture", "llama")
                          .number("llama.expert_count", 8)),
              HasSubstr("experts"));
  EXPECT_THAT(refusal(GgufBytes()
                          .header(0, 2)
                          .text("general.architecture", "llama")
                          .text("llama.rope.scaling.type", "yarn")),
              HasSubstr("yarn"));
}

}  // namespace
}  // namespace kvd::engine
