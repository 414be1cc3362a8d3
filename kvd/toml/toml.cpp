#include "kvd/toml/toml.hpp"

namespace kvd {
namespace {

constexpr int kMostDots = 128;

// The parser bounds brackets itself, but each part of a name is a frame of its stack, so names are
// checked here. A name ends with its line, and none of its parts is empty: dots side by side fill a
// comment or a string.
bool names_are_short(std::string_view text) {
  int dots = 0;
  char before = '\n';
  for (const char c : text) {
    if (c == '\n') dots = 0;
    if (c == '.' && before != '.' && ++dots > kMostDots) return false;
    before = c;
  }
  return true;
}

}  // namespace

Result<toml::table> parse_toml(std::string_view text, const std::string& name) {
  if (!names_are_short(text)) {
    return make_error(ErrorCode::kInvalidArgument, name + ": a line has more than " +
                                                       std::to_string(kMostDots) +
                                                       " dots: shorten its name or break the line");
  }
  try {
    return toml::parse(text, name);
  } catch (const toml::parse_error& error) {
    return make_error(ErrorCode::kInvalidArgument,
                      name + ":" + std::to_string(error.source().begin.line) +
                          ": not TOML: " + std::string(error.description()));
  }
}

}  // namespace kvd
