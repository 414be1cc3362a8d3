#include "ipc/digest/block_chain.hpp"

#include <algorithm>

namespace kvd::digest {
namespace {

using Items = std::span<const MultimodalItem>;

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
  // vLLM's way, and so part of the identity: of a block that answers completed it looks at the last
  // item alone.
  const bool completed_by_answer = begin > Tokens(0) && end > extras.prompt;
  if (completed_by_answer && !items.empty()) items = items.last(1);
  const auto first = std::find_if(items.begin(), items.end(),
                                  [&](const MultimodalItem& item) { return end_of(item) > begin; });
  const auto last = std::find_if(first, items.end(),
                                 [&](const MultimodalItem& item) { return item.offset >= end; });
  return {first, last};
}

}  // namespace

Digest vllm_seed(std::optional<std::string_view> python_hash_seed) {
  CborWriter text;
  text.string(python_hash_seed.value_or("vllm-none-hash"));
  return Sha256()(text.text());
}

void BlockChain::write_extras(const Extras& extras, Tokens begin, Tokens end) {
  const Items items = items_in(extras, begin, end);
  const bool salted = begin == Tokens(0) && !extras.salt.empty();  // later blocks inherit it
  const std::size_t count = (extras.lora.empty() ? 0 : 1) + items.size() + (salted ? 1 : 0);
  if (count == 0) return text_.null();
  text_.array(count);
  if (!extras.lora.empty()) text_.string(extras.lora);
  for (const MultimodalItem& item : items) {
    text_.array(2);
    text_.string(item.identifier);
    text_.integer((item.offset - begin).value);
  }
  if (salted) text_.string(extras.salt);
}

Status BlockChain::extend(std::span<const std::uint32_t> tokens, Tokens block_tokens,
                          const Extras& extras, std::vector<Digest>& chain) {
  if (block_tokens <= Tokens(0)) {
    return make_error(ErrorCode::kInvalidArgument, "a block must have at least one token");
  }
  KVD_TRY(check(extras));
  const std::size_t full = tokens.size() / block_tokens.size();
  chain.reserve(full);
  while (chain.size() < full) {
    const Tokens begin = block_tokens * static_cast<std::int64_t>(chain.size());
    text_.clear();
    text_.array(3);
    text_.bytes((chain.empty() ? seed_ : chain.back()).bytes);
    text_.array(block_tokens.size());
    for (const std::uint32_t token : tokens.subspan(begin.size(), block_tokens.size())) {
      text_.integer(token);
    }
    write_extras(extras, begin, begin + block_tokens);
    chain.push_back(hash_(text_.text()));
  }
  return {};
}

}  // namespace kvd::digest
