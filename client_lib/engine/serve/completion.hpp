#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client_lib/engine/model/hyperparameters.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"

namespace kvd::engine {

/// What a user asks for.
struct Completion {
  std::vector<Token> prompt = {};
  std::uint64_t max_tokens = 16;
  std::vector<std::string> stops = {};  ///< end before the first of these texts
  std::vector<Token> stop_tokens = {};  ///< end at the first of these tokens
  bool ignore_end = false;              ///< go on past the vocabulary's end token
  bool wants_digests = false;
  std::string cache_salt = {};  ///< only prompts with the same one find each other's blocks
  Nanoseconds ttft_slo{0};      ///< 0: kvd's default for this engine
  Nanoseconds tbt_slo{0};       ///< 0: the same, and tokens reach the user as they are made
  Nanoseconds gap_slo{0};       ///< the longest wait for a token after the first; 0: the same
};

enum class FinishReason : std::uint8_t { kStop, kLength };

/// One token on its way to the user.
struct Piece {
  Token token = 0;
  std::string text;                     ///< bytes that may be shown with it; may be none
  std::optional<std::uint64_t> digest;  ///< digest of the logits that it was chosen from
};

/// The receiver of one request's tokens. Calls come from one thread at a time, in this order:
/// accepted(), any number of found() and token(), then ended(). failed() may come at any time, and
/// nothing comes after it.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  virtual void accepted() = 0;
  /// Says how many tokens of the prompt were found computed by now. It is called again where more
  /// were found, but not after the first token.
  virtual void found(std::uint64_t tokens) = 0;
  virtual void token(const Piece& piece) = 0;
  /// `tail`: text that was held back because a stop might have begun there.
  virtual void ended(FinishReason reason, const std::string& tail) = 0;
  virtual void failed(const Error& error) = 0;
  /// Called now and then while the request is open, so that a sink can notice that its client has
  /// left.
  virtual void idle() = 0;
};

}  // namespace kvd::engine
