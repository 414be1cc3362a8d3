#include "client_lib/engine/model/weights.hpp"

#include <utility>

#include "client_lib/engine/model/mapped_file.hpp"

namespace kvd::engine {
namespace {

/// Reads tensors whose shapes the hyperparameters give.
class WeightReader {
 public:
  WeightReader(const Gguf& file, const Hyperparameters& model) : file_(file), model_(model) {}

  Status read_layer(const std::string& prefix, LayerWeights& out) const {
    const std::uint32_t queries = model_.heads * model_.head_dim;
    const std::uint32_t keys = model_.kv_heads * model_.head_dim;
    const std::uint32_t hidden = model_.hidden, inner = model_.feed_forward;
    KVD_ASSIGN_OR_RETURN(out.attention_norm, vector(prefix + "attn_norm.weight", hidden));
    KVD_ASSIGN_OR_RETURN(out.feed_forward_norm, vector(prefix + "ffn_norm.weight", hidden));
    KVD_ASSIGN_OR_RETURN(out.query, matrix(prefix + "attn_q.weight", queries, hidden));
    KVD_ASSIGN_OR_RETURN(out.key, matrix(prefix + "attn_k.weight", keys, hidden));
    KVD_ASSIGN_OR_RETURN(out.value, matrix(prefix + "attn_v.weight", keys, hidden));
    KVD_ASSIGN_OR_RETURN(out.attention_out, matrix(prefix + "attn_output.weight", hidden, queries));
    KVD_ASSIGN_OR_RETURN(out.gate, matrix(prefix + "ffn_gate.weight", inner, hidden));
    KVD_ASSIGN_OR_RETURN(out.up, matrix(prefix + "ffn_up.weight", inner, hidden));
    KVD_ASSIGN_OR_RETURN(out.down, matrix(prefix + "ffn_down.weight", hidden, inner));
    return {};
  }

  Result<std::vector<float>> vector(const std::string& name, std::uint32_t size) const {
    return file_.floats(name, {size});
  }

  Result<Matrix> matrix(const std::string& name, std::uint32_t rows, std::uint32_t columns) const {
    KVD_ASSIGN_OR_RETURN(auto values, file_.floats(name, {columns, rows}));
    return Matrix{rows, columns, std::move(values)};
  }

 private:
  const Gguf& file_;
  const Hyperparameters& model_;
};

void read_vocabulary(const Gguf& file, Weights& out) {
  out.has_vocabulary = file.find("tokenizer.ggml.tokens") != nullptr &&
                       file.text("tokenizer.ggml.model").value_or("no_vocab") != "no_vocab";
  const auto end = file.number("tokenizer.ggml.eos_token_id");
  if (out.has_vocabulary && end && *end < out.model.vocabulary) {
    out.end_token = static_cast<Token>(*end);
  }
}

Result<Weights> weights_of(const Gguf& file) {
  Weights out;
  KVD_ASSIGN_OR_RETURN(out.model, read_hyperparameters(file));
  out.name = file.text("general.name").value_or("kvd-model");
  const WeightReader reader(file, out.model);
  const std::uint32_t hidden = out.model.hidden, vocabulary = out.model.vocabulary;
  KVD_ASSIGN_OR_RETURN(out.embedding, reader.matrix("token_embd.weight", vocabulary, hidden));
  for (std::uint32_t layer = 0; layer < out.model.layers; ++layer) {
    KVD_TRY(reader.read_layer("blk." + std::to_string(layer) + ".", out.layers.emplace_back()));
  }
  KVD_ASSIGN_OR_RETURN(out.norm, reader.vector("output_norm.weight", hidden));
  // A model without an output matrix uses that of its embedding.
  const bool own = file.has_tensor("output.weight");
  KVD_ASSIGN_OR_RETURN(
      out.output, reader.matrix(own ? "output.weight" : "token_embd.weight", vocabulary, hidden));
  if (file.has_tensor("rope_freqs.weight")) {
    KVD_ASSIGN_OR_RETURN(out.rope_factors,
                         reader.vector("rope_freqs.weight", out.model.rope_dim / 2));
  }
  read_vocabulary(file, out);
  return out;
}

}  // namespace

Result<Weights> load_weights(const std::string& path) {
  KVD_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  KVD_ASSIGN_OR_RETURN(const Gguf gguf, Gguf::parse(file.bytes()));
  return weights_of(gguf);
}

}  // namespace kvd::engine
