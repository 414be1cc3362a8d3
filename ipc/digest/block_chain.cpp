#include "ipc/digest/block_chain.hpp"

#include <algorithm>

namespace kvd::digest {
namespace {

using Items = std::span<const MultimodalItem>;

constexpr std::size_t kPickleFrame = 65536;

Tokens end_of(const MultimodalItem& item) { return item.offset + item.length; }

Status check(const Extras& extras) {
  Tokens free{0};
  for (const MultimodalItem& item : extras.items) {
    if (item.offset < free || item.length <= Tokens(0)) {
      return make_error(
          ErrorCode::kInvalidArgument,
          "multimodal items overlap, are out of order or have no tokens: give them by "
          "offset, each with the tokens it takes");
    }
    free = end_of(item);
  }
  return {};
}

/// The items that lie in the block, at least in part.
Items items_in(const Extras& extras, Tokens begin, Tokens end) {
  Items items(extras.items);
  // vLLM looks only at the last item in a block that an answer completed. This is part of the
  // identity, so it is the same here.
  const bool completed_by_answer = begin > Tokens(0) && end > extras.prompt;
  if (completed_by_answer && !items.empty()) items = items.last(1);
  const auto first = std::find_if(items.begin(), items.end(),
                                  [&](const MultimodalItem& item) { return end_of(item) > begin; });
  const auto last = std::find_if(first, items.end(),
                                 [&](const MultimodalItem& item) { return item.offset >= end; });
  return {first, last};
}

}  // namespace

Digest vllm_seed(std::optional<std::string_view> python_hash_seed, BlockText form) {
  const auto hashed = [&](auto text) {
    text.string(python_hash_seed.value_or("vllm-none-hash"));
    return Sha256()(text.text());
  };
  return form == BlockText::kPickle ? hashed(PickleWriter()) : hashed(CborWriter());
}

template <class Writer>
void BlockChain::write_extras(Writer& text, const Extras& extras, Tokens begin, Tokens end) {
  const Items items = items_in(extras, begin, end);
  const bool salted = begin == Tokens(0) && !extras.salt.empty();  // later blocks inherit it
  const std::size_t count = (extras.lora.empty() ? 0 : 1) + items.size() + (salted ? 1 : 0);
  if (count == 0) return text.null();
  text.array(count);
  if (!extras.lora.empty()) text.string(extras.lora);
  for (const MultimodalItem& item : items) {
    text.array(2);
    text.string(item.identifier);
    text.integer((item.offset - begin).value);
    text.end_array(2);
  }
  if (salted) text.string(extras.salt);
  text.end_array(count);
}

template <class Writer>
Status BlockChain::extend_as(Writer& text, std::span<const std::uint32_t> tokens,
                             Tokens block_tokens, const Extras& extras,
                             std::vector<Digest>& chain) {
  const std::size_t full = tokens.size() / block_tokens.size();
  chain.reserve(full);
  while (chain.size() < full) {
    const Tokens begin = block_tokens * static_cast<std::int64_t>(chain.size());
    text.clear();
    text.array(3);
    text.bytes((chain.empty() ? seed_ : chain.back()).bytes);
    text.array(block_tokens.size());
    for (const std::uint32_t token : tokens.subspan(begin.size(), block_tokens.size())) {
      text.integer(token);
    }
    text.end_array(block_tokens.size());
    write_extras(text, extras, begin, begin + block_tokens);
    text.end_array(3);
    const std::span<const std::uint8_t> whole = text.text();
    if (form_ == BlockText::kPickle && whole.size() >= kPickleFrame) {
      return make_error(ErrorCode::kInvalidArgument,
                        "a block's pickled text has 64 KiB or more: make blocks smaller, or take "
                        "digests of CBOR (sha256_cbor)");
    }
    chain.push_back(hash_(whole));
  }
  return {};
}

Status BlockChain::extend(std::span<const std::uint32_t> tokens, Tokens block_tokens,
                          const Extras& extras, std::vector<Digest>& chain) {
  if (block_tokens <= Tokens(0)) {
    return make_error(ErrorCode::kInvalidArgument, "a block must have at least one token");
  }
  KVD_TRY(check(extras));
  return form_ == BlockText::kPickle ? extend_as(pickle_, tokens, block_tokens, extras, chain)
                                     : extend_as(cbor_, tokens, block_tokens, extras, chain);
}

}  // namespace kvd::digest
