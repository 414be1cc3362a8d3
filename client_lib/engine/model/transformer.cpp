#include "client_lib/engine/model/transformer.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "ipc/vocabulary/fnv.hpp"

namespace kvd::engine {
namespace {

constexpr std::uint32_t kTileRows = 64;
constexpr std::size_t kWorthAThread = 1 << 15;  // multiplications, about 10 us

float silu(float x) { return x / (1.0F + std::exp(-x)); }

}  // namespace

Transformer::Transformer(const Weights& weights, std::uint32_t layers_per_block,
                         kernels::PagedAttention& attention, kernels::Workers& workers)
    : weights_(weights),
      layers_per_block_(layers_per_block),
      attention_(attention),
      workers_(workers) {
  const Hyperparameters& model = weights_.model;
  for (std::uint32_t pair = 0; pair < model.rope_dim / 2; ++pair) {
    const double exponent = -2.0 * pair / model.rope_dim;
    const double factor = weights_.rope_factors.empty() ? 1.0 : weights_.rope_factors[pair];
    frequencies_.push_back(std::pow(model.rope_base, exponent) / (factor * model.rope_scale));
  }
}

Result<std::vector<std::vector<float>>> Transformer::forward(std::span<const Sequence> batch,
                                                             const GroupGate& gate) {
  KVD_TRY(embed(batch));
  plan_tiles(batch);
  const std::uint32_t layers = weights_.model.layers;
  for (std::uint32_t index = 0; index < layers; ++index) {
    const std::uint32_t group = index / layers_per_block_;
    if (index % layers_per_block_ == 0) KVD_TRY(gate.enter(group));
    const LayerWeights& layer = weights_.layers[index];
    for (const Tile& tile : tiles_) {
      KVD_TRY(attention(layer, index, batch[tile.sequence], tile));
      feed_forward(layer, tile);
    }
    const bool ends_group = (index + 1) % layers_per_block_ == 0 || index + 1 == layers;
    if (ends_group) KVD_TRY(gate.leave(group));
  }
  std::vector<std::vector<float>> out;
  std::size_t row = 0;
  for (const Sequence& sequence : batch) {
    row += sequence.tokens.size();
    if (sequence.wants_logits) out.push_back(logits_of(row - 1));
  }
  return out;
}

Status Transformer::embed(std::span<const Sequence> batch) {
  hidden_.clear();
  for (const Sequence& sequence : batch) {
    for (const Token token : sequence.tokens) {
      if (token >= weights_.model.vocabulary) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "a token is outside the vocabulary of " + std::to_string(weights_.model.vocabulary));
      }
      const float* row = weights_.embedding.row(token);
      hidden_.insert(hidden_.end(), row, row + weights_.model.hidden);
    }
  }
  return {};
}

void Transformer::plan_tiles(std::span<const Sequence> batch) {
  tiles_.clear();
  std::size_t begin = 0;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const auto rows = static_cast<std::uint32_t>(batch[i].tokens.size());
    for (std::uint32_t skip = 0; skip < rows; skip += kTileRows) {
      tiles_.push_back({i, begin + skip, std::min(kTileRows, rows - skip), skip});
    }
    begin += rows;
  }
}

Status Transformer::attention(const LayerWeights& layer, std::uint32_t index,
                              const Sequence& sequence, const Tile& tile) {
  const Hyperparameters& model = weights_.model;
  float* rows = hidden_.data() + tile.begin * model.hidden;
  const std::uint64_t first = sequence.first + tile.skip;
  const std::size_t query_floats = std::size_t{tile.rows} * layer.query.rows;
  const std::size_t key_floats = std::size_t{tile.rows} * layer.key.rows;
  buffers_.queries.resize(query_floats);
  buffers_.attended.resize(query_floats);
  buffers_.keys.resize(key_floats);
  buffers_.values.resize(key_floats);

  normalise(rows, tile.rows, layer.attention_norm);
  multiply(layer.query, buffers_.normed.data(), tile.rows, buffers_.queries.data());
  multiply(layer.key, buffers_.normed.data(), tile.rows, buffers_.keys.data());
  multiply(layer.value, buffers_.normed.data(), tile.rows, buffers_.values.data());
  rotate(buffers_.queries.data(), tile.rows, model.heads, first);
  rotate(buffers_.keys.data(), tile.rows, model.kv_heads, first);

  const std::size_t group = index / layers_per_block_;
  kernels::AttentionRows work;
  work.slots = sequence.slots.subspan(group * sequence.blocks, sequence.blocks);
  work.layer_in_block = index % layers_per_block_;
  work.first = first;
  work.rows = tile.rows;
  work.queries = buffers_.queries.data();
  work.keys = buffers_.keys.data();
  work.values = buffers_.values.data();
  work.out = buffers_.attended.data();
  KVD_TRY(attention_.store(std::span(&work, 1)));
  KVD_TRY(attention_.attend(std::span(&work, 1)));

  buffers_.projected.resize(std::size_t{tile.rows} * model.hidden);
  multiply(layer.attention_out, buffers_.attended.data(), tile.rows, buffers_.projected.data());
  add_projected(rows, tile.rows);
  return {};
}

void Transformer::feed_forward(const LayerWeights& layer, const Tile& tile) {
  const std::size_t inner = std::size_t{tile.rows} * layer.gate.rows;
  float* rows = hidden_.data() + tile.begin * weights_.model.hidden;
  buffers_.gate.resize(inner);
  buffers_.up.resize(inner);
  normalise(rows, tile.rows, layer.feed_forward_norm);
  multiply(layer.gate, buffers_.normed.data(), tile.rows, buffers_.gate.data());
  multiply(layer.up, buffers_.normed.data(), tile.rows, buffers_.up.data());
  for (std::size_t i = 0; i < inner; ++i) buffers_.up[i] *= silu(buffers_.gate[i]);
  buffers_.projected.resize(std::size_t{tile.rows} * weights_.model.hidden);
  multiply(layer.down, buffers_.up.data(), tile.rows, buffers_.projected.data());
  add_projected(rows, tile.rows);
}

std::vector<float> Transformer::logits_of(std::size_t row) {
  std::vector<float> logits(weights_.output.rows);
  normalise(hidden_.data() + row * weights_.model.hidden, 1, weights_.norm);
  multiply(weights_.output, buffers_.normed.data(), 1, logits.data());
  return logits;
}

/// buffers_.normed = rows / rms(rows) * weight.
void Transformer::normalise(const float* rows, std::size_t count,
                            const std::vector<float>& weight) {
  const std::size_t width = weight.size();
  buffers_.normed.resize(count * width);
  for (std::size_t row = 0; row < count; ++row) {
    const float* in = rows + row * width;
    const float mean = math_.dot(in, in, width) / static_cast<float>(width);
    const float scale = 1.0F / std::sqrt(mean + weights_.model.norm_epsilon);
    float* out = buffers_.normed.data() + row * width;
    for (std::size_t i = 0; i < width; ++i) out[i] = in[i] * scale * weight[i];
  }
}

/// out[r][o] = matrix row o . in row r. Several r share a pass over a matrix row; each sum is its
/// own.
void Transformer::multiply(const Matrix& matrix, const float* in, std::size_t rows, float* out) {
  constexpr std::size_t kSide = kernels::VectorMath::kSide;
  const std::size_t width = matrix.columns, height = matrix.rows;
  const auto work = [&](std::size_t begin, std::size_t end) {
    for (std::size_t o = begin; o < end; ++o) {
      std::size_t r = 0;
      for (; r + kSide <= rows; r += kSide) {
        const float* sides[kSide];
        float sums[kSide];
        for (std::size_t k = 0; k < kSide; ++k) sides[k] = in + (r + k) * width;
        math_.dots(matrix.row(o), sides, width, sums);
        for (std::size_t k = 0; k < kSide; ++k) out[(r + k) * height + o] = sums[k];
      }
      for (; r < rows; ++r) out[r * height + o] = math_.dot(matrix.row(o), in + r * width, width);
    }
  };
  workers_.run(height, kWorthAThread / (width * rows) + 1, work);
}

void Transformer::add_projected(float* rows, std::size_t count) const {
  for (std::size_t i = 0; i < count * weights_.model.hidden; ++i) rows[i] += buffers_.projected[i];
}

/// Turns each pair (2i, 2i + 1) of a head by position * frequency i.
void Transformer::rotate(float* rows, std::size_t count, std::uint32_t heads,
                         std::uint64_t first) const {
  const std::size_t dim = weights_.model.head_dim;
  std::vector<float> cosines(frequencies_.size()), sines(frequencies_.size());
  for (std::size_t row = 0; row < count; ++row) {
    for (std::size_t i = 0; i < frequencies_.size(); ++i) {
      const double angle = static_cast<double>(first + row) * frequencies_[i];
      cosines[i] = static_cast<float>(std::cos(angle));
      sines[i] = static_cast<float>(std::sin(angle));
    }
    for (std::uint32_t head = 0; head < heads; ++head) {
      float* pair = rows + (row * heads + head) * dim;
      for (std::size_t i = 0; i < frequencies_.size(); ++i, pair += 2) {
        const float x = pair[0], y = pair[1];
        pair[0] = x * cosines[i] - y * sines[i];
        pair[1] = x * sines[i] + y * cosines[i];
      }
    }
  }
}

Token greedy(std::span<const float> logits) {
  return static_cast<Token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

std::uint64_t digest(std::span<const float> logits) {
  Fnv1a hash;
  for (const float logit : logits) hash.add(std::bit_cast<std::uint32_t>(logit));
  return hash.value();
}

}  // namespace kvd::engine
