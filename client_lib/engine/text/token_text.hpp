#pragma once

#include <string>

#include "client_lib/engine/model/weights.hpp"

namespace kvd::engine {

/// What a token adds to an answer: its byte, or nothing where the model has a vocabulary, which
/// this engine does not read. A made-up model's tokens are phrases such as " in the garden", of
/// which any may follow any other, so that its answers look like language. Tokens whose numbers
/// differ by 256 have the same one.
[[nodiscard]] std::string text_of(const Weights& weights, Token token);

}  // namespace kvd::engine
