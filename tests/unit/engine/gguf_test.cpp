#include "client_lib/engine/model/gguf.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>

#include "client_lib/engine/model/half.hpp"
#include "client_lib/engine/model/weights.hpp"
#include "tests/support/runtime_folder.hpp"
#include "tests/unit/engine/gguf_bytes.hpp"

namespace kvd::engine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Everything this reader knows, in one small file.
GgufBytes sample() {
  GgufBytes out;
  out.header(3, 6);
  out.text("general.architecture", "llama").number("n", 7);
  out.put_text("real").put<std::uint32_t>(6).put(0.5F);
  out.put_text("signed").put<std::uint32_t>(5).put<std::int32_t>(-3);
  out.put_text("texts").put<std::uint32_t>(9).put<std::uint32_t>(8).put<std::uint64_t>(2);
  out.put_text("a").put_text("bc");
  out.put_text("flags").put<std::uint32_t>(9).put<std::uint32_t>(7).put<std::uint64_t>(3);
  out.put<std::uint8_t>(1).put<std::uint8_t>(0).put<std::uint8_t>(1);
  out.tensor("full", {2, 2}, 0, 0).tensor("half", {2}, 1, 32).tensor("brain", {2}, 30, 64);
  out.align().floats({1, 2, 3, 4}).align();
  out.put<std::uint16_t>(0x3C00).put<std::uint16_t>(0xC000).align();
  out.put<std::uint16_t>(0x3F80).put<std::uint16_t>(0xC040);
  return out;
}

ErrorCode code_of(std::span<const std::byte> bytes) {
  const auto file = Gguf::parse(bytes);
  return file.ok() ? ErrorCode::kOk : file.error().code;
}

TEST(Gguf, ReadsValuesAndTensorsOfEveryTypeItTakes) {
  const GgufBytes bytes = sample();
  const auto file = Gguf::parse(bytes.bytes());
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->text("general.architecture"), "llama");
  EXPECT_EQ(file->number("n"), 7U);
  EXPECT_EQ(file->real("real"), 0.5);
  EXPECT_EQ(file->number("signed"), std::nullopt);
  EXPECT_EQ(std::get<GgufArray>(*file->find("texts")).length, 2U);
  EXPECT_THAT(file->floats("full", {2, 2}).value(), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(file->floats("half", {2}).value(), ElementsAre(1, -2));
  EXPECT_THAT(file->floats("brain", {2}).value(), ElementsAre(1, -3));
}

TEST(Gguf, HalvesAreExact) {
  EXPECT_EQ(from_half(0x0001), 0x1p-24F);
  EXPECT_EQ(from_half(0x83FF), -0x1.ff8p-15F);
  EXPECT_EQ(from_half(0x7BFF), 65504.0F);
  EXPECT_EQ(from_half(0x7C00), INFINITY);
  EXPECT_TRUE(std::isnan(from_half(0x7E01)));
  EXPECT_TRUE(std::signbit(from_half(0x8000)));
}

TEST(Gguf, RefusesEveryTruncation) {
  const GgufBytes whole = sample();
  for (std::size_t n = 0; n < whole.bytes().size(); ++n) {
    const std::vector<std::byte> cut(whole.bytes().begin(),
                                     whole.bytes().begin() + static_cast<std::ptrdiff_t>(n));
    const auto file = Gguf::parse(cut);
    if (!file.ok()) continue;
    // The header is whole; the data is not.
    EXPECT_FALSE(file->floats("brain", {2}).ok()) << n;
  }
}

/// The tensors' bytes of sample(): "full" at 0, "half" at 32, "brain" at 64.
constexpr std::size_t kSampleData = 68;

bool is_refusal(const Error& error) {
  return (error.code == ErrorCode::kInvalidArgument || error.code == ErrorCode::kUnsupported) &&
         !error.message.empty();
}

/// What holds for any bytes: a refusal says why, and a tensor has the values that were asked for.
/// Returns whether the file was taken.
bool expect_sound(const std::vector<std::byte>& bytes) {
  const auto file = Gguf::parse(bytes);
  if (!file.ok()) {
    EXPECT_TRUE(is_refusal(file.error())) << file.error().to_string();
    return false;
  }
  for (const char* name : {"full", "half", "brain"}) {
    for (const std::vector<std::uint64_t>& dims : {std::vector<std::uint64_t>{2, 2}, {2}}) {
      const auto values = file->floats(name, dims);
      if (values.ok()) {
        EXPECT_EQ(values->size(), dims.size() * 2) << name;
      } else {
        EXPECT_TRUE(is_refusal(values.error())) << values.error().to_string();
      }
    }
  }
  return true;
}

TEST(Gguf, SurvivesChangedBytes) {
  const GgufBytes whole = sample();
  const std::uint32_t seed = std::random_device()();
  std::cout << "seed " << seed << std::endl;
  std::mt19937 random(seed);
  int taken = 0, refused = 0;
  for (int round = 0; round < 20000 && !HasFailure(); ++round) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", round " << round);
    std::vector<std::byte> bytes(whole.bytes().begin(), whole.bytes().end());
    for (int i = 0; i < 1 + round % 4; ++i) bytes[random() % bytes.size()] = std::byte(random());
    ++(expect_sound(bytes) ? taken : refused);
  }
  EXPECT_GT(taken, 1000);
  EXPECT_GT(refused, 1000);
}

TEST(Gguf, AChangedByteOfATensorChangesThatValueAlone) {
  const GgufBytes whole = sample();
  const std::size_t data = whole.bytes().size() - kSampleData;
  const std::uint32_t seed = std::random_device()();
  std::cout << "seed " << seed << std::endl;
  std::mt19937 random(seed);
  for (int round = 0; round < 2000 && !HasFailure(); ++round) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", round " << round);
    std::vector<std::byte> bytes(whole.bytes().begin(), whole.bytes().end());
    const std::size_t at = random() % 16;
    bytes[data + at] = std::byte(random());
    const auto file = Gguf::parse(bytes);
    ASSERT_TRUE(file.ok()) << file.error().to_string();
    const std::vector<float> read = file->floats("full", {2, 2}).value();
    // Compares bytes, because a value may be no number.
    EXPECT_TRUE(
        std::ranges::equal(std::as_bytes(std::span(read)), std::span(bytes).subspan(data, 16)));
    EXPECT_THAT(file->floats("half", {2}).value(), ElementsAre(1, -2));
    EXPECT_FALSE(file->floats("half", {2, 2}).ok());
  }
}

TEST(Gguf, RefusesCountsThatTheFileCannotHold) {
  constexpr auto kHuge = ~std::uint64_t{0};
  EXPECT_EQ(code_of(GgufBytes().header(kHuge, 0).bytes()), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(GgufBytes().header(0, kHuge).bytes()), ErrorCode::kInvalidArgument);
  GgufBytes text;
  text.header(0, 1).put(kHuge).put<std::uint64_t>(0).put<std::uint64_t>(0);
  EXPECT_EQ(code_of(text.bytes()), ErrorCode::kInvalidArgument);
  GgufBytes array;
  array.header(0, 1).put_text("a").put<std::uint32_t>(9).put<std::uint32_t>(10).put(kHuge / 8 + 1);
  EXPECT_EQ(code_of(array.bytes()), ErrorCode::kInvalidArgument);
  GgufBytes nested;
  nested.header(0, 1).put_text("a").put<std::uint32_t>(9).put<std::uint32_t>(9);
  nested.put<std::uint64_t>(1).put<std::uint64_t>(0);
  EXPECT_EQ(code_of(nested.bytes()), ErrorCode::kInvalidArgument);
}

TEST(Gguf, RefusesTensorsThatReachPastItsEnd) {
  for (const std::uint64_t offset : {std::uint64_t{4}, ~std::uint64_t{0} - 3}) {
    GgufBytes bytes;
    bytes.header(1, 0).tensor("t", {4}, 0, offset).align().floats({1, 2, 3, 4});
    EXPECT_FALSE(Gguf::parse(bytes.bytes())->floats("t", {4}).ok()) << offset;
  }
  GgufBytes wide;  // 2^32 x 2^32 elements are 0 bytes to a careless product
  const std::vector<std::uint64_t> dims = {1ULL << 32U, 1ULL << 32U};
  wide.header(1, 0).tensor("t", dims, 0, 0).align().floats({1, 2, 3, 4});
  EXPECT_FALSE(Gguf::parse(wide.bytes())->floats("t", dims).ok());
}

TEST(Gguf, SaysWhatItDoesNotRead) {
  EXPECT_EQ(code_of(GgufBytes().header(0, 0, 1).bytes()), ErrorCode::kUnsupported);
  GgufBytes quantized;
  quantized.header(1, 0).tensor("t", {4}, 2, 0).align().floats({1, 2, 3, 4});
  const auto refused = Gguf::parse(quantized.bytes())->floats("t", {4});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(refused.error().message, HasSubstr("F32, F16 and BF16"));
}

TEST(Weights, OfAFileAreThoseWritten) {
  const test::RuntimeFolder folder;
  const auto shape = parse_random_model("layers=2,hidden=32,heads=4,kv_heads=2,ff=48,vocab=64");
  const Weights made = random_weights(*shape);
  const GgufBytes bytes = model_file(made);
  const std::string path = folder.file("model.gguf");
  std::ofstream(path).write(reinterpret_cast<const char*>(bytes.bytes().data()),
                            static_cast<std::streamsize>(bytes.bytes().size()));
  const auto read = load_weights(path);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->model.head_dim, 8U);
  EXPECT_EQ(read->embedding.values, made.embedding.values);
  EXPECT_EQ(read->layers[1].down.values, made.layers[1].down.values);
  EXPECT_EQ(read->output.values, made.output.values);
  EXPECT_FALSE(read->has_vocabulary);

  std::filesystem::resize_file(path, bytes.bytes().size() - 4);
  EXPECT_EQ(load_weights(path).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(load_weights(folder.file("none")).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(load_weights(folder.path()).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvd::engine
