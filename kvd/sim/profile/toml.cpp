#include "kvd/sim/profile/toml.hpp"

#include <algorithm>
#include <cmath>

#include "kvd/toml/toml.hpp"

namespace kvd::sim {
namespace {

/// The comment behind a value that ends at `end`, on the same line.
std::string comment_behind(std::string_view text, toml::source_position end) {
  for (toml::source_index line = 1; line < end.line; ++line) {
    text.remove_prefix(text.find('\n') + 1);
  }
  text = text.substr(0, text.find('\n'));
  // Columns count code points, not bytes.
  for (toml::source_index column = 1; column < end.column && !text.empty(); ++column) {
    do text.remove_prefix(1);
    while (!text.empty() && (text.front() & 0xC0) == 0x80);
  }
  const auto first = text.find_first_not_of(" \t\r#");
  if (first == text.npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(" \t\r") - first + 1));
}

/// Collects the values of one document.
class Reader {
 public:
  Reader(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  Result<std::vector<TomlEntry>> read(const toml::table& root) {
    KVD_TRY(take(root, ""));
    std::sort(entries_.begin(), entries_.end(),
              [](const TomlEntry& a, const TomlEntry& b) { return a.line < b.line; });
    return std::move(entries_);
  }

 private:
  Status take(const toml::table& table, const std::string& prefix) {
    for (const auto& [key, node] : table) {
      const std::string path = prefix + std::string(key.str());
      if (const auto* inner = node.as_table()) {
        KVD_TRY(take(*inner, path + "."));
        continue;
      }
      TomlEntry entry{path, {}, comment_behind(text_, node.source().end), node.source().begin.line};
      if (const auto* text = node.as_string()) {
        entry.value = text->get();
      } else if (const auto* flag = node.as_boolean()) {
        entry.value = flag->get();
      } else if (const auto number = node.value<double>(); number && std::isfinite(*number)) {
        entry.value = *number;
      } else {
        return make_error(ErrorCode::kInvalidArgument,
                          name_ + ":" + std::to_string(entry.line) + ": " + path +
                              R"( is no number, true, false or "string")");
      }
      entries_.push_back(std::move(entry));
    }
    return {};
  }

  std::string_view text_;
  const std::string& name_;
  std::vector<TomlEntry> entries_;
};

}  // namespace

Result<std::vector<TomlEntry>> read_toml(std::string_view text, const std::string& name) {
  KVD_ASSIGN_OR_RETURN(const toml::table root, parse_toml(text, name));
  return Reader(text, name).read(root);
}

std::string toml_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out + "\"";
}

}  // namespace kvd::sim
