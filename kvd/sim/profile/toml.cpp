#include "kvd/sim/profile/toml.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

namespace kvd::sim {
namespace {

constexpr std::string_view kBare =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r");
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

bool is_key(std::string_view text) {
  return !text.empty() && text.find_first_not_of(kBare) == text.npos;
}

/// TOML allows underscores between digits.
std::optional<double> number(std::string_view text) {
  std::string digits;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto digit = [&](std::size_t at) { return at < text.size() && std::isdigit(text[at]); };
    if (text[i] != '_') {
      digits += text[i];
    } else if (i == 0 || !digit(i - 1) || !digit(i + 1)) {
      return std::nullopt;
    }
  }
  if (digits.starts_with('+')) digits.erase(0, 1);
  double value = 0;
  const auto end = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  const bool whole = end.ec == std::errc() && end.ptr == digits.data() + digits.size();
  return whole && std::isfinite(value) ? std::optional(value) : std::nullopt;
}

/// Reads one document line by line.
class Reader {
 public:
  explicit Reader(const std::string& name) : name_(name) {}

  Result<std::vector<TomlEntry>> read(std::string_view text) {
    while (!text.empty()) {
      const auto end = text.find('\n');
      ++line_;
      KVD_TRY(take(trimmed(text.substr(0, end))));
      text = end == text.npos ? std::string_view() : text.substr(end + 1);
    }
    return std::move(entries_);
  }

 private:
  Error fault(const std::string& what) const {
    return make_error(ErrorCode::kInvalidArgument,
                      name_ + ":" + std::to_string(line_) + ": " + what);
  }

  Status take(std::string_view line) {
    if (line.empty() || line.front() == '#') return {};
    if (line.front() == '[') return take_table(line);
    const auto equals = line.find('=');
    const auto key = trimmed(line.substr(0, equals));
    if (equals == line.npos || !is_key(key)) return fault("expected key = value or [table]");
    return take_value(table_ + std::string(key), trimmed(line.substr(equals + 1)));
  }

  Status take_table(std::string_view line) {
    const auto close = line.find(']');
    const auto rest = close == line.npos ? line : trimmed(line.substr(close + 1));
    const auto name = close == line.npos ? line : trimmed(line.substr(1, close - 1));
    if (!is_key(name) || (!rest.empty() && rest.front() != '#')) return fault("expected [table]");
    table_ = std::string(name) + ".";
    if (std::find(tables_.begin(), tables_.end(), table_) != tables_.end()) {
      return fault("table [" + std::string(name) + "] is there twice");
    }
    tables_.push_back(table_);
    return {};
  }

  Status take_value(std::string key, std::string_view text) {
    const auto same = [&](const TomlEntry& entry) { return entry.key == key; };
    if (std::any_of(entries_.begin(), entries_.end(), same)) return fault(key + " is there twice");
    TomlEntry entry{std::move(key), {}, {}, line_};
    if (text.starts_with('"')) {
      KVD_ASSIGN_OR_RETURN(entry.value, take_string(text));
    } else {
      const auto value = trimmed(text.substr(0, text.find('#')));
      const auto figure = number(value);
      if (!figure && value != "true" && value != "false") {
        return fault(entry.key + ": \"" + std::string(value) +
                     R"(" is no number, true, false or "string")");
      }
      if (figure) {
        entry.value = *figure;
      } else {
        entry.value = value == "true";
      }
      text.remove_prefix(value.size());
    }
    text = trimmed(text);
    if (!text.empty() && text.front() != '#') return fault(entry.key + ": more than one value");
    if (!text.empty()) entry.comment = std::string(trimmed(text.substr(1)));
    entries_.push_back(std::move(entry));
    return {};
  }

  /// Takes the string that `text` starts with, and leaves what follows it.
  Result<std::string> take_string(std::string_view& text) const {
    std::string out;
    for (std::size_t i = 1; i < text.size(); ++i) {
      if (text[i] == '"') {
        text.remove_prefix(i + 1);
        return out;
      }
      if (text[i] == '\\') {
        ++i;
        if (i == text.size() || (text[i] != '"' && text[i] != '\\')) {
          return fault(R"(only \" and \\ may be escaped in a string)");
        }
      }
      out += text[i];
    }
    return fault("a string without its closing quote");
  }

  const std::string& name_;
  std::size_t line_ = 0;
  std::string table_;
  std::vector<std::string> tables_;
  std::vector<TomlEntry> entries_;
};

}  // namespace

Result<std::vector<TomlEntry>> read_toml(std::string_view text, const std::string& name) {
  return Reader(name).read(text);
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
