#include "client_lib/src/core/block_names.hpp"

#include <string>

namespace kvd::client {

Result<std::vector<wire::BlockName>> BlockNames::begin(RequestId request,
                                                       const kvd_client::Content& content,
                                                       Tokens prompt, Tokens block_tokens) {
  Told told;
  told.tokens.assign(content.tokens.begin(), content.tokens.end());
  told.extras.lora = content.adapter;
  told.extras.salt = content.salt;
  told.extras.prompt = prompt;
  told.block_tokens = block_tokens;
  return named(request, told_.insert_or_assign(request, std::move(told)).first->second);
}

Result<std::vector<wire::BlockName>> BlockNames::extend(RequestId request,
                                                        std::span<const std::uint32_t> tokens) {
  const auto known = told_.find(request);
  if (known == told_.end()) {
    return make_error(ErrorCode::kNotFound,
                      "request " + std::to_string(request.value) +
                          " was submitted without tokens, or has ended: only what follows a known "
                          "prompt can be named");
  }
  known->second.tokens.insert(known->second.tokens.end(), tokens.begin(), tokens.end());
  return named(request, known->second);
}

Result<std::vector<wire::BlockName>> BlockNames::named(RequestId request, Told& told) {
  const std::size_t before = told.chain.size();
  KVD_TRY(chain_.extend(told.tokens, told.block_tokens, told.extras, told.chain));
  std::vector<wire::BlockName> names;
  names.reserve(told.chain.size() - before);
  for (std::size_t block = before; block < told.chain.size(); ++block) {
    names.push_back({request.value, static_cast<std::uint32_t>(block), 0, told.chain[block].bytes});
  }
  return names;
}

}  // namespace kvd::client
