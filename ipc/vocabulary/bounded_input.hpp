#pragma once

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <istream>
#include <string>
#include <string_view>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"

/// Text that a person hands to a program, bounded before any parser sees it: a file may be a device
/// without an end, a folder, or nested deeper than a parser's stack.
namespace kvd {

/// The whole text up to its end. Errors: NotFound where it cannot be read; InvalidArgument where it
/// is longer than `most`.
[[nodiscard]] inline Result<std::string> read_bounded(std::istream& in, const std::string& name,
                                                      Bytes most) {
  std::string text;
  std::array<char, 1 << 16> piece;
  errno = 0;
  do {
    in.read(piece.data(), piece.size());
    text.append(piece.data(), static_cast<std::size_t>(in.gcount()));
    if (text.size() > most.size()) {
      return make_error(ErrorCode::kInvalidArgument,
                        name + " is larger than " + std::to_string(most / kKiB) +
                            " KiB, the most that is read: name another file");
    }
  } while (in);
  if (!in.bad()) return text;
  return make_error(ErrorCode::kNotFound, "cannot read " + name + ": " + std::strerror(errno));
}

[[nodiscard]] inline Result<std::string> read_bounded(const std::string& file, Bytes most) {
  errno = 0;
  std::ifstream in(file, std::ios::binary);
  if (in) return read_bounded(in, file, most);
  return make_error(ErrorCode::kNotFound, "cannot read " + file + ": " + std::strerror(errno));
}

/// The next line, without its end; false: there is none. Errors: as above; the rest of the line
/// is still to come.
[[nodiscard]] inline Result<bool> read_bounded_line(std::istream& in, std::string& line,
                                                    const std::string& name, Bytes most) {
  line.clear();
  std::streambuf& source = *in.rdbuf();
  try {
    for (int c = source.sbumpc(); c != std::char_traits<char>::eof(); c = source.sbumpc()) {
      if (c == '\n') return true;
      if (line.size() == most.size()) {
        return make_error(ErrorCode::kInvalidArgument,
                          "a line of " + name + " is longer than " + std::to_string(most / kKiB) +
                              " KiB, the most that is read: name another file");
      }
      line += static_cast<char>(c);
    }
  } catch (const std::ios_base::failure&) {  // the library throws it for a folder
    return make_error(ErrorCode::kNotFound, "cannot read " + name + ": it is no file");
  }
  return !line.empty();
}

/// Whether the brackets of a JSON text, outside of its strings, go no deeper than `most`.
/// Errors: InvalidArgument.
[[nodiscard]] inline Status check_nesting(std::string_view json, const std::string& name,
                                          int most = 128) {
  int depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (c == '"') quoted = !quoted;
    if (c == '\\' && quoted) ++i;
    if (quoted) continue;
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (depth > most) {
      return make_error(ErrorCode::kInvalidArgument,
                        name + " nests deeper than " + std::to_string(most) + " levels");
    }
  }
  return {};
}

}  // namespace kvd
