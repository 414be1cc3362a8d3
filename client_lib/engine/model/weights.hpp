#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client_lib/engine/model/gguf.hpp"
#include "client_lib/engine/model/hyperparameters.hpp"

namespace kvd::engine {

/// `rows` outputs of `columns` inputs each, row-major.
struct Matrix {
  std::uint32_t rows = 0;
  std::uint32_t columns = 0;
  std::vector<float> values;

  [[nodiscard]] const float* row(std::size_t index) const {
    return values.data() + index * columns;
  }
};

struct LayerWeights {
  std::vector<float> attention_norm, feed_forward_norm;
  Matrix query, key, value, attention_out;
  Matrix gate, up, down;
};

/// A model in memory. Its numbers are floats, whatever type the file has.
struct Weights {
  Hyperparameters model;
  std::string name;
  Matrix embedding;
  std::vector<LayerWeights> layers;
  std::vector<float> norm;
  Matrix output;
  std::vector<float> rope_factors;  ///< divide the frequencies of RoPE; empty: none
  bool has_vocabulary = false;      ///< the file has one, which this engine does not read
  std::optional<Token> end_token;   ///< of that vocabulary
  bool made_up = false;             ///< by random_weights()
};

/// From a GGUF file of a llama. Errors: as MappedFile, Gguf and read_hyperparameters.
[[nodiscard]] Result<Weights> load_weights(const std::string& path);

/// The same numbers for the same seed on every machine. Scaled so that greedy output stays diverse:
/// with plain small weights it falls into one token, and comparing such outputs proves nothing.
[[nodiscard]] Weights random_weights(const RandomModel& shape);

}  // namespace kvd::engine
