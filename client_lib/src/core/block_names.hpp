#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "ipc/digest/block_chain.hpp"
#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "ipc/wire/messages.hpp"
#include "kvd_client/types.hpp"

namespace kvd::client {

/// Digests of the blocks that the requests' tokens fill, as far as the engine has told them.
/// Source: ipc/PROTOCOL.md, command name.
/// Owner:  whoever has the client's turn.
/// Cost:   SHA-256 of the tokens, some 400 us for 32 K of them.
class BlockNames {
 public:
  using SessionKey = std::array<std::uint8_t, 16>;

  /// The full blocks of a request's first tokens.
  /// Errors: InvalidArgument where the blocks have no tokens.
  Result<std::vector<wire::BlockName>> begin(RequestId request, const kvd_client::Content& content,
                                             Tokens prompt, Tokens block_tokens);
  /// The names of the blocks that more tokens fill. Errors: NotFound for a request without content.
  Result<std::vector<wire::BlockName>> extend(RequestId request,
                                              std::span<const std::uint32_t> tokens);
  void end(RequestId request) { told_.erase(request); }
  /// Forgets all requests where the session is another than the last.
  void follow(const SessionKey& session) {
    if (session != session_) told_.clear();
    session_ = session;
  }

 private:
  struct Told {
    std::vector<std::uint32_t> tokens;
    digest::Extras extras;
    Tokens block_tokens;
    std::vector<Digest> chain;
  };
  Result<std::vector<wire::BlockName>> named(RequestId request, Told& told);

  SessionKey session_{};
  digest::BlockChain chain_;
  std::map<RequestId, Told> told_;
};

}  // namespace kvd::client
