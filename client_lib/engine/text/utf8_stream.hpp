#pragma once

#include <string>
#include <string_view>

namespace kvd::engine {

/// Makes valid UTF-8 of a stream of bytes: characters come out whole, and what is no UTF-8 becomes
/// U+FFFD, as JSON can carry nothing else.
class Utf8Stream {
 public:
  /// The characters that are complete with these bytes.
  std::string feed(std::string_view bytes);
  /// Call it when no more bytes come. A character that was cut off becomes U+FFFD.
  std::string flush();

 private:
  std::string pending_;  ///< the beginning of a character, at most 3 bytes
};

}  // namespace kvd::engine
