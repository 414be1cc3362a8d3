#include <cmath>

#include "client_lib/engine/model/weights.hpp"

namespace kvd::engine {
namespace {

constexpr float kEmbeddingScale = 0.3F;

/// splitmix64, uniform in [-1, 1).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  float next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27U)) * 0x94d049bb133111ebULL;
    return static_cast<float>((z ^ (z >> 31U)) >> 40U) * 0x1p-23F - 1.0F;
  }

  Matrix matrix(std::uint32_t rows, std::uint32_t columns, float scale) {
    Matrix out{rows, columns, std::vector<float>(std::size_t{rows} * columns)};
    for (float& value : out.values) value = scale * next();
    return out;
  }

  /// A matrix that keeps the size of its input, or makes it a little larger.
  Matrix matrix(std::uint32_t rows, std::uint32_t columns) {
    return matrix(rows, columns, 1.5F * std::sqrt(3.0F / static_cast<float>(columns)));
  }

 private:
  std::uint64_t state_;
};

LayerWeights random_layer(const Hyperparameters& model, Random& random) {
  const std::uint32_t queries = model.heads * model.head_dim;
  const std::uint32_t keys = model.kv_heads * model.head_dim;
  LayerWeights out;
  out.attention_norm.assign(model.hidden, 1.0F);
  out.feed_forward_norm.assign(model.hidden, 1.0F);
  out.query = random.matrix(queries, model.hidden);
  out.key = random.matrix(keys, model.hidden);
  out.value = random.matrix(keys, model.hidden);
  out.attention_out = random.matrix(model.hidden, queries);
  out.gate = random.matrix(model.feed_forward, model.hidden);
  out.up = random.matrix(model.feed_forward, model.hidden);
  out.down = random.matrix(model.hidden, model.feed_forward);
  return out;
}

}  // namespace

Weights random_weights(const RandomModel& shape) {
  const Hyperparameters& model = shape.model;
  Random random(shape.seed);
  Weights out;
  out.model = model;
  out.name = "kvd-random";
  out.made_up = true;
  out.embedding = random.matrix(model.vocabulary, model.hidden, kEmbeddingScale);
  for (std::uint32_t layer = 0; layer < model.layers; ++layer) {
    out.layers.push_back(random_layer(model, random));
  }
  out.norm.assign(model.hidden, 1.0F);
  out.output = random.matrix(model.vocabulary, model.hidden);
  return out;
}

}  // namespace kvd::engine
