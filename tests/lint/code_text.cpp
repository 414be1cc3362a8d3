#include "tests/lint/code_text.hpp"

#include <algorithm>
#include <cctype>
#include <string_view>

namespace kvd::lint {
namespace {

/// If something that is no code begins at `at`, returns where it ends; `at` where there is code.
std::size_t end_of_no_code(const std::string& text, std::size_t at, bool line_is_empty) {
  const auto behind = [&](const char* what, std::size_t from) {
    const std::size_t found = text.find(what, from);
    return found == std::string::npos ? text.size() : found + std::string_view(what).size();
  };
  if (text.compare(at, 2, "//") == 0) return behind("\n", at) - 1;
  if (text.compare(at, 2, "/*") == 0) return behind("*/", at + 2);
  if (text.compare(at, 2, "[[") == 0) return behind("]]", at);
  if (text[at] == '#' && line_is_empty) {
    std::size_t end = text.find('\n', at);
    while (end != std::string::npos && text[end - 1] == '\\') end = text.find('\n', end + 1);
    return std::min(end, text.size());
  }
  const bool digit_mark = at > 0 && std::isdigit(static_cast<unsigned char>(text[at - 1])) != 0;
  if (text[at] != '"' && (text[at] != '\'' || digit_mark)) return at;
  std::size_t end = at + 1;
  while (end < text.size() && text[end] != text[at]) end += text[end] == '\\' ? 2u : 1u;
  return std::min(end + 1, text.size());
}

}  // namespace

std::string only_code(const std::string& text) {
  std::string code = text;
  bool line_is_empty = true;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = end_of_no_code(text, at, line_is_empty);
    for (std::size_t i = at; i < end; ++i) code[i] = text[i] == '\n' ? '\n' : ' ';
    if (end == at) {
      if (text[at] == '\n') line_is_empty = true;
      if (!std::isspace(static_cast<unsigned char>(text[at]))) line_is_empty = false;
    }
    at = std::max(end, at + 1);
  }
  return code;
}

}  // namespace kvd::lint
