#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/attention/cpu_paged_attention.hpp"

namespace kvd::kernels {
namespace {

std::vector<float> random_floats(std::mt19937& random, std::size_t n) {
  std::normal_distribution<float> normal;
  std::vector<float> out(n);
  for (float& x : out) x = normal(random);
  return out;
}

/// What one request computes in one layer.
struct Problem {
  AttentionShape shape;
  std::uint32_t tokens;
  std::vector<float> queries, keys, values;

  Problem(const AttentionShape& of, std::uint32_t count, std::mt19937& random)
      : shape(of),
        tokens(count),
        queries(random_floats(random, std::size_t{count} * of.heads * of.kv.head_dim)),
        keys(random_floats(random, count * of.kv.row())),
        values(random_floats(random, count * of.kv.row())) {}
};

/// Slots in one piece of memory, in an order of their own, filled with what must not matter.
class Slots {
 public:
  Slots(const KvLayout& layout, std::uint32_t tokens, std::uint32_t seed)
      : floats_(layout.slot_bytes() / sizeof(float)) {
    const std::uint32_t blocks = (tokens + layout.block_tokens - 1) / layout.block_tokens;
    memory_.assign(blocks * floats_, NAN);
    std::vector<std::size_t> order(blocks);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(seed));
    for (const std::size_t at : order) {
      addresses_.push_back(reinterpret_cast<std::byte*>(memory_.data() + at * floats_));
    }
  }
  [[nodiscard]] std::span<std::byte* const> addresses() const { return addresses_; }
  [[nodiscard]] float* floats(std::size_t block) const {
    return reinterpret_cast<float*>(addresses_[block]);
  }

 private:
  std::size_t floats_;
  std::vector<float> memory_;
  std::vector<std::byte*> addresses_;
};

AttentionRows rows_of(const Problem& problem, const Slots& slots, std::uint32_t layer,
                      std::uint32_t first, std::uint32_t count, std::vector<float>& out) {
  const std::size_t width = std::size_t{problem.shape.heads} * problem.shape.kv.head_dim;
  AttentionRows rows;
  rows.slots = slots.addresses();
  rows.layer_in_block = layer;
  rows.first = first;
  rows.rows = count;
  rows.queries = problem.queries.data() + first * width;
  rows.keys = problem.keys.data() + first * problem.shape.kv.row();
  rows.values = problem.values.data() + first * problem.shape.kv.row();
  rows.out = out.data() + first * width;
  return rows;
}

/// All rows, in chunks of the given size.
std::vector<float> attend(const Problem& problem, const Slots& slots, std::uint32_t layer,
                          std::uint32_t chunk, std::uint32_t threads) {
  Workers workers(threads);
  CpuPagedAttention attention(problem.shape, workers);
  std::vector<float> out(problem.queries.size());
  for (std::uint32_t first = 0; first < problem.tokens; first += chunk) {
    const auto rows =
        rows_of(problem, slots, layer, first, std::min(chunk, problem.tokens - first), out);
    EXPECT_TRUE(attention.store(std::span(&rows, 1)).ok());
    EXPECT_TRUE(attention.attend(std::span(&rows, 1)).ok());
  }
  return out;
}

/// What token t's head h takes of each token before it and itself.
std::vector<double> weights_of(const Problem& problem, std::size_t t, std::size_t h) {
  const std::size_t dim = problem.shape.kv.head_dim, heads = problem.shape.heads;
  const std::size_t share = heads / problem.shape.kv.kv_heads, row = problem.shape.kv.row();
  const float* query = &problem.queries[(t * heads + h) * dim];
  std::vector<double> weights(t + 1);
  for (std::size_t s = 0; s <= t; ++s) {
    const float* key = &problem.keys[s * row + h / share * dim];
    weights[s] = std::exp(std::inner_product(query, query + dim, key, 0.0) /
                          std::sqrt(static_cast<double>(dim)));
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& weight : weights) weight /= sum;
  return weights;
}

/// Plain attention in doubles, without blocks.
std::vector<double> oracle(const Problem& problem) {
  const std::size_t dim = problem.shape.kv.head_dim, heads = problem.shape.heads;
  const std::size_t share = heads / problem.shape.kv.kv_heads, row = problem.shape.kv.row();
  std::vector<double> out(problem.queries.size());
  for (std::size_t at = 0; at < problem.tokens * heads; ++at) {
    const std::size_t t = at / heads, h = at % heads;
    const std::vector<double> weights = weights_of(problem, t, h);
    for (std::size_t s = 0; s <= t; ++s) {
      const float* value = &problem.values[s * row + h / share * dim];
      for (std::size_t d = 0; d < dim; ++d) out[at * dim + d] += weights[s] * double{value[d]};
    }
  }
  return out;
}

TEST(KvLayout, GivesEveryFloatOfASlotToOneToken) {
  const KvLayout layout{3, 5, 2, 4};
  std::vector<int> seen(layout.slot_bytes() / sizeof(float));
  constexpr std::uint32_t kLayers = 3, kTokens = 5;
  for (std::uint32_t at = 0; at < kLayers * kTokens; ++at) {
    for (const KvPart part : {KvPart::kKey, KvPart::kValue}) {
      const std::size_t offset = layout.offset(at / kTokens, part, at % kTokens);
      for (std::size_t i = 0; i < layout.row(); ++i) ++seen.at(offset + i);
    }
  }
  EXPECT_THAT(seen, testing::Each(1));
  EXPECT_EQ(layout.slot_bytes(),
            std::size_t{kLayers} * kTokens * layout.bytes_per_token_per_layer());
}

TEST(PagedAttention, IsAttention) {
  std::mt19937 random(7);
  for (const std::uint32_t kv_heads : {1U, 2U, 6U}) {
    for (const std::uint32_t dim : {4U, 24U, 64U}) {
      for (const std::uint32_t tokens : {1U, 16U, 53U}) {
        const Problem problem({{2, 16, kv_heads, dim}, 6}, tokens, random);
        const Slots slots(problem.shape.kv, tokens, 1);
        const auto out = attend(problem, slots, 1, tokens, 1);
        const auto expected = oracle(problem);
        for (std::size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], expected[i], 2e-5);
      }
    }
  }
}

TEST(PagedAttention, GivesTheSameBitsForEveryPlaceChunkBlockAndThread) {
  std::mt19937 random(11);
  const Problem problem({{1, 16, 2, 32}, 4}, 75, random);
  const auto expected =
      attend(problem, Slots(problem.shape.kv, problem.tokens, 1), 0, problem.tokens, 1);
  for (std::uint32_t seed = 2; seed < 12; ++seed) {
    Problem other = problem;
    other.shape.kv.layers_per_block = 1 + seed % 3;
    other.shape.kv.block_tokens = 3 * seed;
    const std::uint32_t layer = seed % other.shape.kv.layers_per_block;
    const std::uint32_t chunk = 1 + (seed * 7) % 40, threads = 1 + seed % 3;
    const Slots slots(other.shape.kv, other.tokens, seed);
    const auto out = attend(other, slots, layer, chunk, threads);
    EXPECT_EQ(std::memcmp(out.data(), expected.data(), out.size() * sizeof(float)), 0)
        << "chunk " << chunk << ", threads " << threads;
  }
}

/// The control of the test above: a comparison that passes whatever the slots hold proves nothing.
TEST(PagedAttention, NoticesOneFlippedBitOfAKey) {
  std::mt19937 random(13);
  const Problem problem({{1, 16, 2, 32}, 4}, 40, random);
  const Slots slots(problem.shape.kv, problem.tokens, 1);
  Workers workers(1);
  CpuPagedAttention attention(problem.shape, workers);
  std::vector<float> before(problem.queries.size()), after = before;
  auto rows = rows_of(problem, slots, 0, 0, problem.tokens, before);
  ASSERT_TRUE(attention.store(std::span(&rows, 1)).ok());
  ASSERT_TRUE(attention.attend(std::span(&rows, 1)).ok());
  std::uint32_t bits = 0;
  float* key = slots.floats(0) + problem.shape.kv.offset(0, KvPart::kKey, 3);
  std::memcpy(&bits, key, sizeof bits);
  bits ^= 1U << 22U;
  std::memcpy(key, &bits, sizeof bits);
  rows.out = after.data();
  ASSERT_TRUE(attention.attend(std::span(&rows, 1)).ok());
  EXPECT_NE(before, after);
}

TEST(PagedAttention, RefusesRowsThatItsSlotsDoNotCover) {
  std::mt19937 random(17);
  const Problem problem({{1, 16, 1, 8}, 1}, 33, random);
  const Slots slots(problem.shape.kv, 32, 1);
  Workers workers(1);
  CpuPagedAttention attention(problem.shape, workers);
  std::vector<float> out(problem.queries.size());
  const auto rows = rows_of(problem, slots, 0, 0, 33, out);
  EXPECT_EQ(attention.store(std::span(&rows, 1)).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(attention.attend(std::span(&rows, 1)).code(), ErrorCode::kInvalidArgument);
  const auto other_layer = rows_of(problem, slots, 1, 0, 1, out);
  EXPECT_EQ(attention.store(std::span(&other_layer, 1)).code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvd::kernels
