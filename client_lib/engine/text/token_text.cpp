#include "client_lib/engine/text/token_text.hpp"

#include <array>

namespace kvd::engine {
namespace {

constexpr Token kBytes = 256;

constexpr std::array kLinks = {"in",   "under",  "by",   "of",      "with",  "beyond",
                               "near", "behind", "over", "through", "after", "across",
                               "from", "around", "and",  "toward"};
constexpr std::array kThings = {"river", "morning", "garden", "lamp", "window", "letter",
                                "port",  "winter",  "bridge", "road", "music",  "stone",
                                "cloud", "library", "sea",    "clock"};

}  // namespace

std::string text_of(const Weights& weights, Token token) {
  if (weights.has_vocabulary) return {};
  if (weights.made_up) {
    const char* link = kLinks[token % kLinks.size()];
    const char* thing = kThings[token / kLinks.size() % kThings.size()];
    return std::string(" ") + link + " the " + thing;
  }
  return token < kBytes ? std::string(1, static_cast<char>(token)) : std::string();
}

}  // namespace kvd::engine
