#include "client_lib/engine/text/utf8_stream.hpp"

#include <cstdint>

namespace kvd::engine {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// Bytes of the character that `first` begins; 0: it begins none.
std::size_t length_of(unsigned char first) {
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return 2;
  if (first >= 0xE0 && first <= 0xEF) return 3;
  if (first >= 0xF0 && first <= 0xF4) return 4;
  return 0;
}

/// Whether `next` may be the second byte after `first`: no overlong form, no surrogate, nothing
/// past U+10FFFF (Unicode table 3-7).
bool is_second(unsigned char first, unsigned char next) {
  const unsigned char low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  return next >= low && next <= high;
}

bool is_next(std::string_view bytes, std::size_t at) {
  const auto byte = static_cast<unsigned char>(bytes[at]);
  if (at == 1) return is_second(static_cast<unsigned char>(bytes[0]), byte);
  return byte >= 0x80 && byte <= 0xBF;
}

}  // namespace

std::string Utf8Stream::feed(std::string_view bytes) {
  pending_ += bytes;
  std::string out;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const std::size_t length = length_of(static_cast<unsigned char>(rest[0]));
    std::size_t good = 1;
    while (good < length && good < rest.size() && is_next(rest, good)) ++good;
    if (good == rest.size() && good < length) break;  // the rest of it may still come
    if (good == length) {
      out += rest.substr(0, good);
    } else {
      out += kReplacement;
    }
    rest.remove_prefix(good);
  }
  pending_ = std::string(rest);
  return out;
}

std::string Utf8Stream::flush() {
  if (pending_.empty()) return {};
  pending_.clear();
  return std::string(kReplacement);
}

}  // namespace kvd::engine
