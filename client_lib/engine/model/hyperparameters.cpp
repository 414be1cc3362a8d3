#include "client_lib/engine/model/hyperparameters.hpp"

#include <charconv>
#include <cmath>
#include <limits>
#include <sstream>
#include <vector>

namespace kvd::engine {
namespace {

struct Limit {
  const char* name;
  std::uint32_t value;
  std::uint32_t most;
};

Error out_of_range(const char* name, std::uint64_t value, std::uint64_t most) {
  return make_error(ErrorCode::kInvalidArgument, "the model's " + std::string(name) + " is " +
                                                     std::to_string(value) + ", 1 to " +
                                                     std::to_string(most) + " are possible");
}

/// A whole number of the file under "llama.<key>".
class Keys {
 public:
  explicit Keys(const Gguf& file) : file_(file) {}

  Result<std::uint32_t> need(const std::string& key) const {
    const auto value = file_.number("llama." + key);
    if (!value) {
      return make_error(ErrorCode::kInvalidArgument, "the model file has no number llama." + key);
    }
    return narrow(key, *value);
  }

  Result<std::uint32_t> get(const std::string& key, std::uint32_t otherwise) const {
    if (file_.find("llama." + key) == nullptr) return otherwise;
    return need(key);
  }

 private:
  static Result<std::uint32_t> narrow(const std::string& key, std::uint64_t value) {
    constexpr auto kMost = std::numeric_limits<std::uint32_t>::max();
    if (value > kMost) return out_of_range(key.c_str(), value, kMost);
    return static_cast<std::uint32_t>(value);
  }

  const Gguf& file_;
};

/// What a llama-shaped file may ask for and this engine does not do.
Status refuse_unsupported(const Gguf& file) {
  const auto unsupported = [](const std::string& what) {
    return make_error(ErrorCode::kUnsupported, "this engine does not run " + what);
  };
  const auto architecture = file.text("general.architecture").value_or("");
  if (architecture != "llama") {
    return unsupported("the architecture \"" + architecture + R"(", only "llama")");
  }
  if (file.number("llama.expert_count").value_or(0) > 0) return unsupported("mixtures of experts");
  const auto scaling = file.text("llama.rope.scaling.type").value_or("none");
  if (scaling != "none" && scaling != "linear") {
    return unsupported("RoPE scaling of type \"" + scaling + "\"");
  }
  return {};
}

Status read_attention(const Keys& keys, Hyperparameters& out) {
  KVD_ASSIGN_OR_RETURN(out.heads, keys.need("attention.head_count"));
  KVD_ASSIGN_OR_RETURN(out.kv_heads, keys.get("attention.head_count_kv", out.heads));
  const std::uint32_t even = out.heads == 0 ? 0 : out.hidden / out.heads;
  KVD_ASSIGN_OR_RETURN(out.head_dim, keys.get("attention.key_length", even));
  KVD_ASSIGN_OR_RETURN(const auto value_dim, keys.get("attention.value_length", out.head_dim));
  if (value_dim != out.head_dim) {
    return make_error(ErrorCode::kUnsupported,
                      "this engine does not run models whose keys and values differ in length");
  }
  KVD_ASSIGN_OR_RETURN(out.rope_dim, keys.get("rope.dimension_count", out.head_dim));
  return {};
}

Status assign(RandomModel& out, const std::string& name, std::uint64_t value) {
  Hyperparameters& model = out.model;
  if (name == "seed") {
    out.seed = value;
    return {};
  }
  const std::pair<const char*, std::uint32_t*> names[] = {
      {"layers", &model.layers},    {"hidden", &model.hidden},     {"ff", &model.feed_forward},
      {"heads", &model.heads},      {"kv_heads", &model.kv_heads}, {"head_dim", &model.head_dim},
      {"vocab", &model.vocabulary}, {"context", &model.context}};
  for (const auto& [known, target] : names) {
    if (name != known) continue;
    constexpr auto kMost = std::numeric_limits<std::uint32_t>::max();
    if (value > kMost) return out_of_range(known, value, kMost);
    *target = static_cast<std::uint32_t>(value);
    return {};
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "a random model has no \"" + name +
                        "\": layers, hidden, ff, heads, kv_heads, head_dim, vocab, context, seed");
}

}  // namespace

Status check(const Hyperparameters& model) {
  const Limit limits[] = {{"layers", model.layers, 1024},
                          {"hidden size", model.hidden, 1 << 16},
                          {"feed-forward size", model.feed_forward, 1 << 18},
                          {"heads", model.heads, 1024},
                          {"KV heads", model.kv_heads, 1024},
                          {"head size", model.head_dim, 1024},
                          {"vocabulary", model.vocabulary, 1 << 20},
                          {"context", model.context, 1 << 24},
                          {"rotated dimensions", model.rope_dim, model.head_dim}};
  for (const Limit& limit : limits) {
    if (limit.value < 1 || limit.value > limit.most) {
      return out_of_range(limit.name, limit.value, limit.most);
    }
  }
  const auto refuse = [](const char* what) {
    return make_error(ErrorCode::kInvalidArgument, std::string("the model's ") + what);
  };
  if (model.heads % model.kv_heads != 0) return refuse("heads are no multiple of its KV heads");
  if (model.rope_dim % 2 != 0) return refuse("rotated dimensions are not even");
  if (!(model.norm_epsilon >= 0 && model.norm_epsilon < 1))
    return refuse("norm epsilon is no small number");
  if (!(model.rope_base > 0 && std::isfinite(model.rope_base)))
    return refuse("RoPE base is not positive");
  if (!(model.rope_scale > 0 && std::isfinite(model.rope_scale)))
    return refuse("RoPE scale is not positive");
  constexpr std::size_t kMostKv = 1 << 20;  // kvd's limit for a token in one layer
  if (model.layout(1, 1).bytes_per_token_per_layer() > kMostKv) {
    return refuse("KV of a token in one layer is more than 1 MiB");
  }
  return {};
}

Result<Hyperparameters> read_hyperparameters(const Gguf& file) {
  KVD_TRY(refuse_unsupported(file));
  const Keys keys(file);
  Hyperparameters out;
  KVD_ASSIGN_OR_RETURN(out.layers, keys.need("block_count"));
  KVD_ASSIGN_OR_RETURN(out.hidden, keys.need("embedding_length"));
  KVD_ASSIGN_OR_RETURN(out.feed_forward, keys.need("feed_forward_length"));
  KVD_ASSIGN_OR_RETURN(out.context, keys.need("context_length"));
  KVD_TRY(read_attention(keys, out));
  const auto* tokens = file.find("tokenizer.ggml.tokens");
  const auto* listed = tokens == nullptr ? nullptr : std::get_if<GgufArray>(tokens);
  if (listed != nullptr && listed->length <= (1U << 20U)) {
    out.vocabulary = static_cast<std::uint32_t>(listed->length);
  } else {
    KVD_ASSIGN_OR_RETURN(out.vocabulary, keys.need("vocab_size"));
  }
  out.norm_epsilon =
      static_cast<float>(file.real("llama.attention.layer_norm_rms_epsilon").value_or(1e-5));
  out.rope_base = file.real("llama.rope.freq_base").value_or(10000);
  if (file.text("llama.rope.scaling.type").value_or("none") == "linear") {
    out.rope_scale = file.real("llama.rope.scaling.factor").value_or(1);
  }
  KVD_TRY(check(out));
  return out;
}

Result<RandomModel> parse_random_model(const std::string& text) {
  RandomModel out;
  out.model.head_dim = 0;
  std::istringstream entries(text);
  for (std::string entry; std::getline(entries, entry, ',');) {
    const auto equals = entry.find('=');
    std::uint64_t value = 0;
    const char* end = entry.data() + entry.size();
    const auto begin = equals == std::string::npos ? end : entry.data() + equals + 1;
    const auto parsed = std::from_chars(begin, end, value);
    if (parsed.ec != std::errc() || parsed.ptr != end) {
      return make_error(ErrorCode::kInvalidArgument,
                        "\"" + entry + "\" is no NAME=NUMBER of a random model");
    }
    KVD_TRY(assign(out, entry.substr(0, equals), value));
  }
  Hyperparameters& model = out.model;
  if (model.head_dim == 0 && model.heads != 0) model.head_dim = model.hidden / model.heads;
  model.rope_dim = model.head_dim;
  KVD_TRY(check(model));
  return out;
}

}  // namespace kvd::engine
