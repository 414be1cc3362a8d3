#include "kvd/ctl/settings_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <vector>

#include "ipc/vocabulary/errno_words.hpp"
#include "ipc/vocabulary/unique_fd.hpp"
#include "kvd/ctl/cells.hpp"

namespace kvd::ctl {
namespace {

using cells::Json;

/// `text` without white space and, where it is a name, without its quotes.
std::string bare(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (std::strchr(" \t\"'", c) == nullptr) out += c;
  }
  return out;
}

/// The lines of a TOML file. Tables are found by the line that opens them.
class TomlLines {
 public:
  explicit TomlLines(std::string_view text) {
    while (!text.empty()) {
      const std::size_t end = text.find('\n');
      lines_.emplace_back(text.substr(0, end));
      text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    }
  }

  Status set(const std::string& path, const std::string& value) {
    const std::size_t dot = path.rfind('.');
    const std::string table = path.substr(0, dot), key = path.substr(dot + 1);
    KVD_TRY(refuse_other_forms(table));
    const std::string line = key + " = " + value;
    for (std::size_t at = 0; at < lines_.size(); ++at) {
      if (opened_by(at) != table) continue;
      const auto begin = lines_.begin() + static_cast<std::ptrdiff_t>(at) + 1;
      const auto end = lines_.begin() + static_cast<std::ptrdiff_t>(end_of(at));
      const auto old =
          std::find_if(begin, end, [&](const std::string& each) { return key_of(each) == key; });
      if (old != end) {
        *old = line;
      } else {
        lines_.insert(begin, line);
      }
      return {};
    }
    append_table(table, line);
    return {};
  }

  /// A table that loses its last key is removed, too.
  Status remove(const std::string& path) {
    const std::size_t dot = path.rfind('.');
    const std::string table = path.substr(0, dot), key = path.substr(dot + 1);
    KVD_TRY(refuse_other_forms(table));
    for (std::size_t at = 0; at < lines_.size(); ++at) {
      if (opened_by(at) != table) continue;
      const auto header = lines_.begin() + static_cast<std::ptrdiff_t>(at);
      const auto end = lines_.begin() + static_cast<std::ptrdiff_t>(end_of(at));
      const auto is_key = [&](const std::string& each) { return key_of(each) == key; };
      const auto kept = std::remove_if(header + 1, end, is_key);
      const bool others = std::any_of(
          header + 1, kept, [](const std::string& each) { return !key_of(each).empty(); });
      lines_.erase(kept, end);
      if (!others) lines_.erase(lines_.begin() + static_cast<std::ptrdiff_t>(at));
      break;
    }
    return {};
  }

  [[nodiscard]] std::string text() const {
    std::string out;
    for (const std::string& line : lines_) out += line + "\n";
    return out;
  }

 private:
  static std::string key_of(const std::string& line) {
    const std::size_t equals = line.find('=');
    return equals == std::string::npos ? "" : bare(line.substr(0, equals));
  }

  static bool opens(const std::string& line) {
    const std::size_t first = line.find_first_not_of(" \t");
    return first != std::string::npos && line[first] == '[';
  }

  [[nodiscard]] std::size_t end_of(std::size_t header) const {
    std::size_t end = header + 1;
    while (end < lines_.size() && !opens(lines_[end])) ++end;
    return end;
  }

  /// The table that the line opens, as in a key's path: "slo.batch", "domain.NAME"; else nothing.
  [[nodiscard]] std::string opened_by(std::size_t at) const {
    if (!opens(lines_[at])) return {};
    const std::string header = bare(lines_[at]);
    if (!header.starts_with("[[domain]]")) {
      return header.substr(1, std::min(header.find(']'), header.size()) - 1);
    }
    for (std::size_t i = at + 1; i < end_of(at); ++i) {
      if (key_of(lines_[i]) == "name") return "domain." + string_in(lines_[i]);
    }
    return {};
  }

  /// What stands between the first quotes.
  static std::string string_in(const std::string& line) {
    const std::size_t open = line.find_first_of("\"'");
    if (open == std::string::npos) return {};
    const std::size_t close = line.find(line[open], open + 1);
    return line.substr(open + 1, close == std::string::npos ? close : close - open - 1);
  }

  [[nodiscard]] Status refuse_other_forms(const std::string& table) const {
    const std::string first = table.substr(0, table.find('.'));
    const std::string rest = table.substr(std::min(first.size() + 1, table.size()));
    bool in_root = true, in_parent = false;
    for (std::size_t at = 0; at < lines_.size(); ++at) {
      const std::string key = key_of(lines_[at]);
      if (opens(lines_[at])) {
        in_root = false;
        in_parent = first != table && opened_by(at) == first;
        continue;
      }
      const bool says_it_here = in_root && (key == first || key.starts_with(first + "."));
      const bool says_it_within = in_parent && (key == rest || key.starts_with(rest + "."));
      if (!says_it_here && !says_it_within) continue;
      return make_error(ErrorCode::kUnsupported,
                        "line " + std::to_string(at + 1) + " of the file sets " + key +
                            " in a form that kvdctl does not edit; change it by hand: kvdctl "
                            "config --print");
    }
    return {};
  }

  void append_table(const std::string& table, const std::string& line) {
    if (!lines_.empty() && !lines_.back().empty()) lines_.emplace_back();
    const std::size_t dot = table.find('.');
    const std::string name = dot == std::string::npos ? "" : Json(table.substr(dot + 1)).dump();
    if (table.starts_with("domain.")) {
      lines_.emplace_back("[[domain]]");
      lines_.emplace_back("name = " + name);
    } else {
      lines_.emplace_back("[" + table.substr(0, dot) + (name.empty() ? "" : "." + name) + "]");
    }
    lines_.push_back(line);
  }

  std::vector<std::string> lines_;
};

Error reason(const std::string& path) {
  return make_error(ErrorCode::kPermissionDenied,
                    path + ": " + errno_words(errno) +
                        "; run kvdctl as the user who owns the file, or put there what kvdctl "
                        "config --print prints");
}

}  // namespace

Result<std::string> settings_saved(std::string_view file, std::string_view config,
                                   std::string_view origins) {
  try {
    const Json values = Json::parse(config), who = Json::parse(origins);
    TomlLines lines(file);
    for (const auto& [key, before] : who.at("live").items()) {
      const bool there = values.contains(key);
      KVD_TRY(there ? lines.set(key, values.at(key).dump()) : lines.remove(key));
    }
    return lines.text();
  } catch (const Json::exception& error) {
    return cells::unknown_answer(error);
  }
}

Result<std::string> linked_file(const std::string& named) {
  struct stat link {};
  if (::lstat(named.c_str(), &link) != 0 || !S_ISLNK(link.st_mode)) return named;
  if (link.st_uid != 0 && link.st_uid != ::geteuid()) {
    return make_error(ErrorCode::kPermissionDenied,
                      named +
                          " is a link of another user, who may lead it elsewhere; name the "
                          "file that it leads to");
  }
  std::error_code fault;
  std::string file = std::filesystem::canonical(named, fault);
  if (!fault) return file;
  return make_error(ErrorCode::kInvalidArgument, named + " leads to no file: " + fault.message() +
                                                     "; name the file that is to be written");
}

Status replace_file(const std::string& path, const std::string& text) {
  const std::string fresh = path + ".new";
  (void)::unlink(fresh.c_str());  // one that was killed left it
  const UniqueFd file(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file.valid()) return reason(fresh);
  struct stat old {};
  const bool like_old =
      ::stat(path.c_str(), &old) != 0 || (::fchown(file.get(), old.st_uid, old.st_gid) == 0 &&
                                          ::fchmod(file.get(), old.st_mode & 07777) == 0);
  if (like_old) errno = ENOSPC;  // a file that runs full takes a part without an error
  const bool written =
      like_old && ::write(file.get(), text.data(), text.size()) == std::ssize(text);
  if (written && ::fsync(file.get()) == 0 && ::rename(fresh.c_str(), path.c_str()) == 0) {
    return {};
  }
  const Error why = reason(path);
  (void)::unlink(fresh.c_str());
  return why;
}

}  // namespace kvd::ctl
