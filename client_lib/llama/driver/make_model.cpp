/// kvd-llama-model: writes a small llama model with random weights, the same for the same seed.
///
/// It needs no download. Its tokenizer knows single bytes, which is enough for programs that take
/// text; what kvd-llama feeds it are token ids. The weights are scaled so that greedy
/// output stays diverse: with plain small weights it degenerates to one token, and a comparison of
/// such runs would prove nothing.
#include <ggml.h>
#include <gguf.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace {

struct Shape {
  std::uint32_t layers = 4;
  std::uint32_t embedding = 256;
  std::uint32_t feed_forward = 768;
  std::uint32_t heads = 8;
  std::uint32_t heads_kv = 4;
  std::uint32_t vocabulary = 2048;
  std::uint32_t context = 32768;

  [[nodiscard]] std::uint32_t head_size() const { return embedding / heads; }
  [[nodiscard]] std::uint32_t embedding_kv() const { return head_size() * heads_kv; }
};

/// splitmix64: a few lines, and the same numbers on every machine.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  /// Uniform in [-1, 1).
  float next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return static_cast<float>((z ^ (z >> 31)) >> 40) * 0x1p-23F - 1.0F;
  }

 private:
  std::uint64_t state_;
};

struct ContextDeleter {
  void operator()(ggml_context* context) const { ggml_free(context); }
  void operator()(gguf_context* file) const { gguf_free(file); }
};

class ModelWriter {
 public:
  ModelWriter(const Shape& shape, std::uint64_t seed)
      : shape_(shape), random_(seed), file_(gguf_init_empty()) {
    constexpr std::size_t kRoom = 256U << 20U;  // address space only; touched as it is filled
    context_.reset(ggml_init({kRoom, nullptr, false}));
  }

  bool write(const char* path) {
    set_keys();
    add_embedding();
    for (std::uint32_t layer = 0; layer < shape_.layers; ++layer) add_layer(layer);
    add_ones("output_norm.weight");
    add_matrix("output.weight", shape_.embedding, shape_.vocabulary);
    return gguf_write_to_file(file_.get(), path, false);
  }

 private:
  void set_keys() {
    gguf_set_val_str(file_.get(), "general.architecture", "llama");
    gguf_set_val_str(file_.get(), "general.name", "kvd random test model");
    set_tokenizer();
    set_number("llama.vocab_size", shape_.vocabulary);
    set_number("llama.context_length", shape_.context);
    set_number("llama.embedding_length", shape_.embedding);
    set_number("llama.block_count", shape_.layers);
    set_number("llama.feed_forward_length", shape_.feed_forward);
    set_number("llama.attention.head_count", shape_.heads);
    set_number("llama.attention.head_count_kv", shape_.heads_kv);
    set_number("llama.rope.dimension_count", shape_.head_size());
    gguf_set_val_f32(file_.get(), "llama.attention.layer_norm_rms_epsilon", 1e-5F);
  }

  /// Three special tokens, one for each byte, and words nobody writes up to the vocabulary's end.
  void set_tokenizer() {
    constexpr std::uint32_t kBytes = 256;
    enum : std::int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kByte = 6 };
    std::vector<std::string> texts = {"<unk>", "<s>", "</s>"};
    std::vector<std::int32_t> types = {kUnknown, kControl, kControl};
    for (std::uint32_t byte = 0; byte < kBytes; ++byte) {
      std::array<char, 8> text{};
      std::snprintf(text.data(), text.size(), "<0x%02X>", byte);
      texts.emplace_back(text.data());
      types.push_back(kByte);
    }
    while (texts.size() < shape_.vocabulary) {
      texts.push_back("word" + std::to_string(texts.size()));
      types.push_back(kNormal);
    }
    std::vector<const char*> names;
    names.reserve(texts.size());
    for (const std::string& text : texts) names.push_back(text.c_str());
    const std::vector<float> scores(texts.size(), 0.0F);
    gguf_context* file = file_.get();
    gguf_set_val_str(file, "tokenizer.ggml.model", "llama");
    gguf_set_arr_str(file, "tokenizer.ggml.tokens", names.data(), names.size());
    gguf_set_arr_data(file, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, scores.data(),
                      scores.size());
    gguf_set_arr_data(file, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types.data(),
                      types.size());
  }

  void set_number(const char* key, std::uint32_t value) {
    gguf_set_val_u32(file_.get(), key, value);
  }

  void add_embedding() {
    constexpr float kEmbeddingScale = 0.3F;
    fill(add("token_embd.weight", shape_.embedding, shape_.vocabulary), kEmbeddingScale);
  }

  void add_layer(std::uint32_t layer) {
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    add_ones(prefix + "attn_norm.weight");
    add_matrix(prefix + "attn_q.weight", shape_.embedding, shape_.embedding);
    add_matrix(prefix + "attn_k.weight", shape_.embedding, shape_.embedding_kv());
    add_matrix(prefix + "attn_v.weight", shape_.embedding, shape_.embedding_kv());
    add_matrix(prefix + "attn_output.weight", shape_.embedding, shape_.embedding);
    add_ones(prefix + "ffn_norm.weight");
    add_matrix(prefix + "ffn_gate.weight", shape_.embedding, shape_.feed_forward);
    add_matrix(prefix + "ffn_up.weight", shape_.embedding, shape_.feed_forward);
    add_matrix(prefix + "ffn_down.weight", shape_.feed_forward, shape_.embedding);
  }

  void add_ones(const std::string& name) {
    ggml_tensor* tensor = ggml_new_tensor_1d(context_.get(), GGML_TYPE_F32, shape_.embedding);
    register_tensor(tensor, name);
    auto* weights = static_cast<float*>(tensor->data);
    for (std::uint32_t i = 0; i < shape_.embedding; ++i) weights[i] = 1.0F;
  }

  void add_matrix(const std::string& name, std::uint32_t inputs, std::uint32_t outputs) {
    const float scale = 1.5F * std::sqrt(3.0F) / std::sqrt(static_cast<float>(inputs));
    fill(add(name, inputs, outputs), scale);
  }

  ggml_tensor* add(const std::string& name, std::uint32_t inputs, std::uint32_t outputs) {
    ggml_tensor* tensor = ggml_new_tensor_2d(context_.get(), GGML_TYPE_F32, inputs, outputs);
    register_tensor(tensor, name);
    return tensor;
  }

  void register_tensor(ggml_tensor* tensor, const std::string& name) {
    ggml_set_name(tensor, name.c_str());
    gguf_add_tensor(file_.get(), tensor);
  }

  void fill(ggml_tensor* tensor, float scale) {
    auto* weights = static_cast<float*>(tensor->data);
    const auto count = static_cast<std::size_t>(ggml_nelements(tensor));
    for (std::size_t i = 0; i < count; ++i) weights[i] = scale * random_.next();
  }

  Shape shape_;
  Random random_;
  std::unique_ptr<gguf_context, ContextDeleter> file_;
  std::unique_ptr<ggml_context, ContextDeleter> context_;
};

}  // namespace

int main(int argc, char** argv) {
  std::string path;
  std::uint64_t seed = 1;
  Shape shape;
  bool ok = argc % 2 == 1;
  for (int i = 1; ok && i + 1 < argc; i += 2) {
    const char* end = argv[i + 1] + std::strlen(argv[i + 1]);
    if (std::strcmp(argv[i], "--out") == 0) {
      path = argv[i + 1];
    } else if (std::strcmp(argv[i], "--seed") == 0) {
      ok = std::from_chars(argv[i + 1], end, seed).ptr == end;
    } else if (std::strcmp(argv[i], "--layers") == 0) {
      ok = std::from_chars(argv[i + 1], end, shape.layers).ptr == end && shape.layers >= 1 &&
           shape.layers <= 64;
    } else {
      ok = false;
    }
  }
  if (!ok || path.empty()) {
    std::fputs("usage: kvd-llama-model --out FILE.gguf [--seed N] [--layers 1..64]\n", stderr);
    return 2;
  }
  if (ModelWriter(shape, seed).write(path.c_str())) return 0;
  std::fprintf(stderr, "kvd-llama-model: cannot write %s\n", path.c_str());
  return 1;
}
