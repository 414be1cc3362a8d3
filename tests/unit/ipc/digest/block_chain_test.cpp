// The digests of blocks are vLLM's. The golden values are of its functions, with seed and tokens as
// said beside them.
#include "ipc/digest/block_chain.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "tests/unit/ipc/digest/hex.hpp"

namespace kvd::digest {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr Tokens kBlock{16};

std::vector<std::uint32_t> tokens(std::size_t count) {
  std::vector<std::uint32_t> made(count);
  std::iota(made.begin(), made.end(), 1);
  return made;
}

std::vector<Digest> chain(std::size_t count, const Extras& extras = {},
                          BlockChain sut = BlockChain()) {
  std::vector<Digest> made;
  const Status status = sut.extend(tokens(count), kBlock, extras, made);
  EXPECT_TRUE(status.ok());
  return made;
}

/// The digest of a block whose text is known.
std::string hashed(const CborWriter& text) { return hex(Sha256()(text.text())); }

/// The text of block `i` of tokens(), up to its extra keys.
CborWriter text_of(std::size_t i, const Digest& parent) {
  CborWriter text;
  text.array(3);
  text.bytes(parent.bytes);
  text.array(16);
  for (std::size_t token = 16 * i + 1; token <= 16 * i + 16; ++token) {
    text.integer(static_cast<std::int64_t>(token));
  }
  return text;
}

TEST(BlockChainTest, SeedsAreThoseOfVllm) {
  EXPECT_EQ(hex(vllm_seed()), "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0");
  EXPECT_EQ(hex(vllm_seed("0")),
            "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e");
}

TEST(BlockChainTest, DigestsAreThoseOfVllm) {
  const auto made = chain(33);
  ASSERT_THAT(made, SizeIs(2)) << "of full blocks alone";
  EXPECT_EQ(hex(made[0]), "cd7c51bc5a8fc8643f383a2b9e01522fba7473c669e9270c7b0bf7bf7fd01682");
  EXPECT_EQ(hex(made[1]), "2533ea50426b36e9e4d68296cac6bce8cf602e46957d0fe40b368b33d87bf3bf");
}

TEST(BlockChainTest, AnotherSeedMakesAnotherChain) {
  const auto made = chain(16, {}, BlockChain(vllm_seed("0")));
  EXPECT_EQ(hex(made.at(0)), "202da172482d928bbc42ab25b0151e2b895f13f41002e27b2ceabcfae6d332ea");
}

TEST(BlockChainTest, TheSaltIsInTheFirstBlockAndSoInAllLaterOnes) {
  const auto made = chain(32, {.salt = "tenant-a"});
  EXPECT_EQ(hex(made.at(0)), "84ab0ef3dc094fc39519521dd81c13715e990c1d39795a4e040cfbeb178d35b6");
  CborWriter second = text_of(1, made[0]);
  second.null();
  EXPECT_EQ(hex(made.at(1)), hashed(second));
}

TEST(BlockChainTest, TheAdapterIsInEveryBlock) {
  const auto made = chain(32, {.lora = "sql"});
  for (std::size_t i = 0; i < 2; ++i) {
    CborWriter text = text_of(i, i == 0 ? vllm_seed() : made[0]);
    text.array(1);
    text.string("sql");
    EXPECT_EQ(hex(made.at(i)), hashed(text)) << i;
  }
}

TEST(BlockChainTest, ItemsCountInTheBlocksTheyTouchFromTheBlocksStart) {
  const Extras extras{.lora = "sql",
                      .items = {{"cat", Tokens(4), Tokens(20)}, {"dog", Tokens(24), Tokens(8)}},
                      .salt = "s",
                      .prompt = Tokens(48)};
  const auto made = chain(48, extras);
  CborWriter first = text_of(0, vllm_seed());
  first.array(3);
  first.string("sql");
  first.array(2);
  first.string("cat");
  first.integer(4);
  first.string("s");
  EXPECT_EQ(hex(made.at(0)), hashed(first));
  CborWriter second = text_of(1, made[0]);
  second.array(3);
  second.string("sql");
  second.array(2);
  second.string("cat");
  second.integer(-12);
  second.array(2);
  second.string("dog");
  second.integer(8);
  EXPECT_EQ(hex(made.at(1)), hashed(second));
  CborWriter third = text_of(2, made[1]);
  third.array(1);
  third.string("sql");
  EXPECT_EQ(hex(made.at(2)), hashed(third)) << "the items end before it";
}

TEST(BlockChainTest, OfABlockThatTheAnswerCompletesTheLastItemCountsAlone) {
  const Extras extras{.items = {{"cat", Tokens(16), Tokens(4)}, {"dog", Tokens(20), Tokens(4)}},
                      .prompt = Tokens(30)};
  const auto made = chain(32, extras);
  CborWriter second = text_of(1, made.at(0));
  second.array(1);
  second.array(2);
  second.string("dog");
  second.integer(4);
  EXPECT_EQ(hex(made.at(1)), hashed(second));
}

// The golden values of this one are CPython's: hashlib.sha256(pickle.dumps(..., protocol=5)).
TEST(BlockChainTest, PickledTextIsThatOfVllmsDefault) {
  const Digest seed = vllm_seed(std::nullopt, BlockText::kPickle);
  EXPECT_EQ(hex(seed), "066b1e8987e027138e98701c46128929378935f9b6cd1549105ae6b4f0d71198");
  EXPECT_EQ(hex(vllm_seed("0", BlockText::kPickle)),
            "1973e23848344dc43a988a9b478663803cfffe1243480253f9a3cf004b14aa7c");
  const auto pickled_chain = [&](std::size_t count, const Extras& extras) {
    return chain(count, extras, BlockChain(seed, BlockText::kPickle));
  };
  const auto plain = pickled_chain(32, {});
  EXPECT_EQ(hex(plain.at(0)), "7b255da405e1d722823892e4fef187b4d8ac78215d7f0dd2137bb037547f4caf");
  EXPECT_EQ(hex(plain.at(1)), "8e717becdc2054b7a3223b7b844f462c0db0ac86287b752b16d077ad0843c577");
  EXPECT_EQ(hex(pickled_chain(16, {.salt = "tenant-a"}).at(0)),
            "a53ac8bde370bb4c1c264c15caf98ed8d756b0ca96151a5b47592848baa7f631");
  EXPECT_EQ(hex(pickled_chain(16, {.lora = std::string(300, 'x')}).at(0)),
            "73df7b20143a88addc727634719ec059ff8ff06a7bdd7e3be2865f98c976455b");
  const Extras items{.lora = "sql",
                     .items = {{"cat", Tokens(4), Tokens(20)}, {"dog", Tokens(24), Tokens(8)}},
                     .salt = "s",
                     .prompt = Tokens(32)};
  const auto mixed = pickled_chain(32, items);
  EXPECT_EQ(hex(mixed.at(0)), "209f3f63f10de5343d89ba238a5b70c2c7cda841f112a09de7bfa517454dbbdd");
  EXPECT_EQ(hex(mixed.at(1)), "2276b0254b201b692a4a43d8cd70c6e483bc96797d760e0e6bc40a8483ccf374");
}

std::string first_pickled(const std::vector<std::uint32_t>& tokens) {
  BlockChain sut(vllm_seed(std::nullopt, BlockText::kPickle), BlockText::kPickle);
  std::vector<Digest> made;
  EXPECT_TRUE(sut.extend(tokens, Tokens(std::ssize(tokens)), {}, made).ok());
  return made.empty() ? "" : hex(made[0]);
}

TEST(BlockChainTest, PickledTokensOfEveryLength) {
  EXPECT_EQ(first_pickled({0, 255, 256, 65535, 65536, 2147483647, 2147483648, 4294967295}),
            "d3c5c0353aa2f6b5c26e455f78af6431170fcbd87a667493ffa1cb84b1df2861");
  EXPECT_EQ(first_pickled({1, 2}),
            "786f9bbddcb5139e76c24f3ad8bb4e4b20647409291b3f2c769f6f0a874bb774");
  EXPECT_EQ(first_pickled({70000}),
            "ba292bb2879be2d20a9af6af863bdb68dbe290e5189b1513c496b632f07feb7e");
}

TEST(BlockChainTest, RefusesPickledTextOfSeveralFrames) {
  BlockChain sut(vllm_seed(std::nullopt, BlockText::kPickle), BlockText::kPickle);
  std::vector<Digest> made;
  EXPECT_EQ(sut.extend(tokens(30'000), Tokens(30'000), {}, made).code(),
            ErrorCode::kInvalidArgument);
}

TEST(BlockChainTest, GrowsWithTheRequest) {
  BlockChain sut;
  std::vector<Digest> made;
  for (const std::size_t count : {5u, 16u, 31u, 32u, 80u}) {
    ASSERT_TRUE(sut.extend(tokens(count), kBlock, {}, made).ok());
    EXPECT_THAT(made, SizeIs(count / 16));
  }
  EXPECT_EQ(made, chain(80));
}

TEST(BlockChainTest, RefusesWhatIsNoRequest) {
  BlockChain sut;
  std::vector<Digest> made;
  EXPECT_EQ(sut.extend(tokens(16), Tokens(0), {}, made).code(), ErrorCode::kInvalidArgument);
  const MultimodalItem cat{"cat", Tokens(4), Tokens(4)};
  for (const MultimodalItem& bad :
       {MultimodalItem{"dog", Tokens(7), Tokens(4)}, MultimodalItem{"dog", Tokens(8), Tokens(0)},
        MultimodalItem{"dog", Tokens(-1), Tokens(2)}}) {
    const Extras extras{.items = {cat, bad}};
    EXPECT_EQ(sut.extend(tokens(16), kBlock, extras, made).code(), ErrorCode::kInvalidArgument);
  }
  EXPECT_THAT(made, IsEmpty());
}

}  // namespace
}  // namespace kvd::digest
