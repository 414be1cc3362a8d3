#include "client_lib/engine/model/transformer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <set>

#include "tests/unit/engine/small_model.hpp"

namespace kvd::engine {
namespace {

using Row = std::vector<double>;

Row times(const Matrix& matrix, const Row& in) {
  Row out;
  for (std::size_t o = 0; o < matrix.rows; ++o) {
    out.push_back(std::inner_product(in.begin(), in.end(), matrix.row(o), 0.0));
  }
  return out;
}

Row normed(const Row& in, const std::vector<float>& weight, double epsilon) {
  const double mean =
      std::inner_product(in.begin(), in.end(), in.begin(), 0.0) / static_cast<double>(in.size());
  Row out = in;
  for (std::size_t i = 0; i < in.size(); ++i)
    out[i] *= double{weight[i]} / std::sqrt(mean + epsilon);
  return out;
}

void rotate(Row& row, std::size_t position, const Hyperparameters& model) {
  for (std::size_t at = 0; at < row.size(); at += 2) {
    const std::size_t in_head = at % model.head_dim;
    const double angle = static_cast<double>(position) *
                         std::pow(model.rope_base, -static_cast<double>(in_head) / model.rope_dim);
    const double x = row[at], y = row[at + 1];
    row[at] = x * std::cos(angle) - y * std::sin(angle);
    row[at + 1] = x * std::sin(angle) + y * std::cos(angle);
  }
}

/// The textbook, in doubles: no cache, no blocks, one token after the other.
class Oracle {
 public:
  explicit Oracle(const Weights& weights)
      : weights_(weights), keys_(weights.layers.size()), values_(weights.layers.size()) {}

  Row logits(Token token) {
    const Hyperparameters& model = weights_.model;
    const float* embedded = weights_.embedding.row(token);
    Row hidden(embedded, embedded + model.hidden);
    for (std::size_t i = 0; i < weights_.layers.size(); ++i) {
      const LayerWeights& layer = weights_.layers[i];
      const Row in = normed(hidden, layer.attention_norm, double{model.norm_epsilon});
      add(hidden, times(layer.attention_out, attend(i, in)));
      const Row inner = normed(hidden, layer.feed_forward_norm, double{model.norm_epsilon});
      Row gate = times(layer.gate, inner);
      const Row up = times(layer.up, inner);
      for (std::size_t k = 0; k < gate.size(); ++k) gate[k] *= up[k] / (1 + std::exp(-gate[k]));
      add(hidden, times(layer.down, gate));
    }
    ++position_;
    return times(weights_.output, normed(hidden, weights_.norm, double{model.norm_epsilon}));
  }

 private:
  static void add(Row& to, const Row& from) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
  }

  Row attend(std::size_t index, const Row& in) {
    const Hyperparameters& model = weights_.model;
    const LayerWeights& layer = weights_.layers[index];
    Row query = times(layer.query, in), key = times(layer.key, in);
    rotate(query, position_, model);
    rotate(key, position_, model);
    keys_[index].push_back(key);
    values_[index].push_back(times(layer.value, in));
    Row out(query.size());
    for (std::size_t head = 0; head < model.heads; ++head) {
      const std::size_t from = head / (model.heads / model.kv_heads) * model.head_dim;
      Row weights;
      for (const Row& past : keys_[index]) {
        double score = 0;
        for (std::size_t d = 0; d < model.head_dim; ++d) {
          score += query[head * model.head_dim + d] * past[from + d];
        }
        weights.push_back(std::exp(score / std::sqrt(static_cast<double>(model.head_dim))));
      }
      const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
      for (std::size_t t = 0; t < weights.size(); ++t) {
        for (std::size_t d = 0; d < model.head_dim; ++d) {
          out[head * model.head_dim + d] += weights[t] / sum * values_[index][t][from + d];
        }
      }
    }
    return out;
  }

  const Weights& weights_;
  std::size_t position_ = 0;
  std::vector<std::vector<Row>> keys_, values_;
};

std::vector<Token> random_tokens(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Token> out(count);
  for (Token& token : out) token = random() % 256;
  return out;
}

/// The logits after the last token when the prompt comes in chunks.
std::vector<float> run(SmallModel& model, const std::vector<Token>& tokens, std::size_t chunk) {
  const RequestMemory memory(model.layout(), 3, static_cast<std::uint32_t>(tokens.size()));
  std::vector<float> last;
  for (std::size_t first = 0; first < tokens.size(); first += chunk) {
    const auto piece = std::span(tokens).subspan(first, std::min(chunk, tokens.size() - first));
    const Sequence sequence = memory.sequence(piece, first);
    auto logits = model.transformer().forward(std::span(&sequence, 1), kAlwaysReady);
    EXPECT_TRUE(logits.ok());
    last = std::move(logits->front());
  }
  return last;
}

TEST(Transformer, IsTheTextbooks) {
  SmallModel model;
  const auto tokens = random_tokens(90, 3);
  Oracle oracle(model.weights());
  Row expected;
  for (const Token token : tokens) expected = oracle.logits(token);
  const auto logits = run(model, tokens, tokens.size());
  ASSERT_EQ(logits.size(), expected.size());
  for (std::size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(logits[i], expected[i], 1e-3);
}

TEST(Transformer, GivesTheSameBitsForEveryChunkBlockAndThread) {
  const auto tokens = random_tokens(150, 4);
  SmallModel whole;
  const std::uint64_t expected = digest(run(whole, tokens, tokens.size()));
  for (const std::size_t chunk : {1U, 7U, 64U, 65U, 149U}) {
    EXPECT_EQ(digest(run(whole, tokens, chunk)), expected) << "chunk " << chunk;
  }
  for (const std::uint32_t layers_per_block : {1U, 2U, 3U}) {
    for (const std::uint32_t threads : {1U, 3U}) {
      SmallModel other(layers_per_block, 5 * layers_per_block, threads);
      EXPECT_EQ(digest(run(other, tokens, 40)), expected) << layers_per_block << " layers a block";
    }
  }
}

TEST(Transformer, GivesTheSameBitsInEveryCompany) {
  SmallModel model;
  constexpr std::size_t kRequests = 5;
  std::vector<std::vector<Token>> tokens;
  std::vector<std::uint64_t> expected;
  std::vector<RequestMemory> memories;
  for (std::uint32_t i = 0; i < kRequests; ++i) {
    tokens.push_back(random_tokens(20 + 17 * i, i));
    expected.push_back(digest(run(model, tokens[i], tokens[i].size())));
    memories.emplace_back(model.layout(), 3, static_cast<std::uint32_t>(tokens[i].size()));
  }
  // Each round takes another piece of each request, so that long and short pieces mix.
  std::vector<std::size_t> done(kRequests);
  std::vector<std::uint64_t> last(kRequests);
  std::mt19937 random(9);
  for (bool any = true; any;) {
    any = false;
    std::vector<Sequence> batch;
    std::vector<std::size_t> who;
    for (std::size_t i = 0; i < kRequests; ++i) {
      const std::size_t count = std::min<std::size_t>(random() % 9, tokens[i].size() - done[i]);
      if (done[i] < tokens[i].size()) any = true;
      if (count == 0) continue;
      batch.push_back(memories[i].sequence(std::span(tokens[i]).subspan(done[i], count), done[i]));
      who.push_back(i);
      done[i] += count;
    }
    const auto logits = model.transformer().forward(batch, kAlwaysReady);
    ASSERT_TRUE(logits.ok());
    for (std::size_t k = 0; k < who.size(); ++k) last[who[k]] = digest((*logits)[k]);
  }
  EXPECT_EQ(last, expected);
}

/// One request whose full blocks stand in one staging set for all layer groups, as kvd streams
/// them: a group's bytes are there between enter and leave, and nothing but noise before and after.
class StagedRequest {
 public:
  StagedRequest(SmallModel& model, std::uint32_t layers_per_block)
      : model_(model),
        groups_(model.weights().model.layers / layers_per_block),
        resident_(model.layout(), model.weights().model.layers, kBlocks * kBlockTokens) {
    for (std::uint32_t block = 0; block < kBlocks; ++block) {
      staging_.push_back(std::make_unique<std::byte[]>(model.layout().slot_bytes()));
    }
  }

  /// `flip`: a bit of one float of the last group's first block goes the other way in staging.
  std::vector<float> logits_of(std::span<const Token> tokens, bool flip) {
    const std::size_t before = tokens.size() - 1;
    Sequence sequence = resident_.sequence(tokens.first(before), 0);
    EXPECT_TRUE(model_.transformer().forward(std::span(&sequence, 1), kAlwaysReady).ok());
    sequence = resident_.sequence(tokens.subspan(before), before);
    const std::span<std::byte* const> home = sequence.slots;
    const auto sealed = static_cast<std::uint32_t>(before / kBlockTokens);
    std::vector<std::byte*> slots(home.begin(), home.end());
    for (std::uint32_t group = 0; group < groups_; ++group) {
      for (std::uint32_t block = 0; block < sealed; ++block) {
        slots[group * kBlocks + block] = staging_[block].get();
      }
    }
    sequence.slots = slots;
    const std::size_t bytes = model_.layout().slot_bytes();
    const GroupGate gate{[&](std::uint32_t group) -> Status {
                           for (std::uint32_t b = 0; b < sealed; ++b) {
                             std::memcpy(staging_[b].get(), home[group * kBlocks + b], bytes);
                           }
                           if (flip && group + 1 == groups_) staging_[0][3] ^= std::byte{0x80};
                           return {};
                         },
                         [&](std::uint32_t) -> Status {
                           for (auto& slot : staging_) std::memset(slot.get(), 0xff, bytes);
                           return {};
                         }};
    auto logits = model_.transformer().forward(std::span(&sequence, 1), gate);
    EXPECT_TRUE(logits.ok());
    return logits->front();
  }

 private:
  static constexpr std::uint32_t kBlocks = 6;
  static constexpr std::uint32_t kBlockTokens = 8;
  SmallModel& model_;
  const std::uint32_t groups_;
  const RequestMemory resident_;
  std::vector<std::unique_ptr<std::byte[]>> staging_;
};

TEST(Transformer, TouchesAGroupsSlotsOnlyBetweenItsGates) {
  const auto tokens = random_tokens(45, 8);
  for (const std::uint32_t layers_per_block : {1U, 3U}) {
    SmallModel model(layers_per_block);
    const std::uint64_t expected = digest(run(model, tokens, tokens.size()));
    EXPECT_EQ(digest(StagedRequest(model, layers_per_block).logits_of(tokens, false)), expected);
    EXPECT_NE(digest(StagedRequest(model, layers_per_block).logits_of(tokens, true)), expected);
  }
}

TEST(Transformer, EndsWithTheErrorOfAGate) {
  SmallModel model(1);
  const auto tokens = random_tokens(5, 9);
  const RequestMemory memory(model.layout(), 3, 5);
  const Sequence sequence = memory.sequence(tokens, 0);
  const auto fail_at = [](std::uint32_t at) {
    return [at](std::uint32_t group) {
      return group == at ? Status(make_error(ErrorCode::kUnavailable, "gone")) : Status();
    };
  };
  for (const GroupGate& gate : {GroupGate{fail_at(2), allow}, GroupGate{allow, fail_at(1)}}) {
    EXPECT_FALSE(model.transformer().forward(std::span(&sequence, 1), gate).ok());
  }
}

/// The control of the tests above.
TEST(Transformer, DigestNoticesOneChangedToken) {
  SmallModel model;
  auto tokens = random_tokens(60, 5);
  const auto before = digest(run(model, tokens, 60));
  tokens[0] ^= 1;
  EXPECT_NE(digest(run(model, tokens, 60)), before);
}

TEST(Transformer, GreedyOutputStaysDiverse) {
  SmallModel model;
  std::vector<Token> tokens = random_tokens(4, 6);
  for (int i = 0; i < 100; ++i) tokens.push_back(greedy(run(model, tokens, tokens.size())));
  const std::set<Token> distinct(tokens.begin() + 4, tokens.end());
  EXPECT_GT(distinct.size(), 40U);
}

TEST(Transformer, AsksForEachLayerBeforeItTouchesIt) {
  SmallModel model(1, 8);
  const RequestMemory memory(model.layout(), 3, 8);
  const auto tokens = random_tokens(8, 7);
  const Sequence sequence = memory.sequence(tokens, 0);
  std::vector<std::uint32_t> asked;
  const auto refuse_last = [&](std::uint32_t layer) -> Status {
    asked.push_back(layer);
    for (std::uint32_t later = layer; later < 3; ++later) {
      EXPECT_EQ(*sequence.slots[later], std::byte{0}) << "layer " << later;
    }
    if (layer < 2) return {};
    return make_error(ErrorCode::kUnavailable, "gone");
  };
  const auto logits = model.transformer().forward(std::span(&sequence, 1), {refuse_last, allow});
  ASSERT_FALSE(logits.ok());
  EXPECT_EQ(logits.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(asked, testing::ElementsAre(0, 1, 2));
}

TEST(Transformer, RefusesForeignTokensAndMissingBlocks) {
  SmallModel model;
  const RequestMemory memory(model.layout(), 3, 8);
  const std::vector<Token> foreign = {256}, many(9, 1);
  for (const auto* tokens : {&foreign, &many}) {
    const Sequence sequence = memory.sequence(*tokens, 0);
    const auto logits = model.transformer().forward(std::span(&sequence, 1), kAlwaysReady);
    ASSERT_FALSE(logits.ok());
    EXPECT_EQ(logits.error().code, ErrorCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace kvd::engine
