#include "tests/lint/comment_rules.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <sstream>
#include <string_view>

namespace kvd::lint {
namespace fs = std::filesystem;
namespace {

constexpr int kLeastPercent = 25;

std::string text_of(const fs::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

bool is_header(const fs::path& file) {
  return file.extension() == ".hpp" || file.extension() == ".h";
}

/// What stands in backticks in a cell of a table.
std::vector<std::string> names_in(const std::string& cell) {
  static const std::regex kName("`([^`]+)`");
  std::vector<std::string> out;
  for (std::sregex_iterator at(cell.begin(), cell.end(), kName), end; at != end; ++at) {
    out.push_back((*at)[1]);
  }
  return out;
}

std::vector<std::string> cells_of(const std::string& row) {
  std::vector<std::string> out;
  std::istringstream in(row);
  for (std::string cell; std::getline(in, cell, '|');) out.push_back(cell);
  return out;
}

/// The headers of one row, `| wish | folders | names |`. A name is a path from the root, or a file
/// of one of the folders.
void add_row(const fs::path& root, const std::string& row, std::set<fs::path>& out) {
  const auto cells = cells_of(row);
  if (cells.size() < 4) return;
  for (const std::string& name : names_in(cells[3])) {
    if (!is_header(name)) continue;
    if (fs::exists(root / name)) out.insert(name);
    for (const std::string& folder : names_in(cells[2])) {
      if (fs::exists(root / folder / name)) out.insert(fs::path(folder) / name);
    }
  }
}

/// What begins a comment in the file; empty: the rule does not read it.
std::string_view marker_of(const fs::path& file) {
  constexpr std::array<std::string_view, 6> kHashed = {".py",   ".sh",  ".cmake",
                                                       ".toml", ".yml", ".awk"};
  if (is_source(file) || file.extension() == ".js") return "//";
  const bool hashed = file.filename() == "CMakeLists.txt" ||
                      std::find(kHashed.begin(), kHashed.end(), file.extension()) != kHashed.end();
  return hashed ? "#" : "";
}

/// The words of the comment or docstring on the line; empty: there is none, or it may be part of a
/// literal.
std::string_view comment_on(std::string_view line, std::string_view marker) {
  for (const std::string_view opening : {R"(""")", "/*"}) {
    const auto begin = line.find_first_not_of(" \t");
    if (begin != std::string_view::npos && line.substr(begin).starts_with(opening)) {
      return line.substr(std::min(line.find_first_not_of(R"("/*!< )", begin), line.size()));
    }
  }
  const auto at = line.find(marker);
  if (at == std::string_view::npos || line.substr(0, at).find('"') != std::string_view::npos) {
    return {};
  }
  const auto words = line.find_first_not_of("/#!< \t", at);
  return words == std::string_view::npos ? std::string_view() : line.substr(words);
}

bool opens_as_a_fragment(std::string_view words) {
  constexpr std::array<std::string_view, 5> kOpeners = {"Of", "Those", "Who", "So", "That of"};
  return std::any_of(kOpeners.begin(), kOpeners.end(), [&](std::string_view opener) {
    return words.starts_with(opener) &&
           (words.size() == opener.size() ||
            std::isalnum(static_cast<unsigned char>(words[opener.size()])) == 0);
  });
}

}  // namespace

int comment_percent(const std::string& text) {
  int lines = 0, comments = 0;
  bool inside = false;  // within a comment that began on an earlier line
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    ++lines;
    const auto opens = line.rfind("/*"), closes = line.rfind("*/");
    const bool begins = opens != std::string::npos;
    if (inside || begins || line.find("//") != std::string::npos) ++comments;
    if (begins) inside = closes == std::string::npos || closes < opens;
    if (!begins && closes != std::string::npos) inside = false;
  }
  return lines == 0 ? 100 : 100 * comments / lines;
}

std::vector<fs::path> first_headers(const fs::path& root) {
  std::set<fs::path> out;
  for (const fs::path& file : files_under(root, is_header)) {
    if (file.string().starts_with("client_lib/include/")) out.insert(file);
  }
  bool in_table = false;
  for (const std::string& line : lines_of(root / "CONTRIBUTING.md")) {
    if (line.starts_with("## ")) in_table = line.starts_with("## I want to change");
    if (in_table && line.starts_with("|")) add_row(root, line, out);
  }
  return {out.begin(), out.end()};
}

std::vector<Finding> check_headers_are_explained(const fs::path& root) {
  std::vector<Finding> findings;
  for (const fs::path& file : first_headers(root)) {
    const int percent = comment_percent(text_of(root / file));
    if (percent >= kLeastPercent) continue;
    findings.push_back({file, 0,
                        std::to_string(percent) + " % of the lines are comments, " +
                            std::to_string(kLeastPercent) +
                            " are asked for: say units, errors, threads, why"});
  }
  return findings;
}

std::vector<Finding> check_comments_are_sentences(const fs::path& root,
                                                  const std::vector<fs::path>& files) {
  std::vector<Finding> findings;
  for (const fs::path& file : files) {
    const std::string_view marker = marker_of(file);
    if (marker.empty()) continue;
    bool goes_on = false;  // the line before is nothing but a comment
    const auto lines = lines_of(root / file);
    for (std::size_t i = 0; i < lines.size(); ++i) {
      const std::string_view line = lines[i];
      const auto begin = std::min(line.find_first_not_of(" \t"), line.size());
      const bool alone = line.substr(begin).starts_with(marker);
      if (!(alone && goes_on) && opens_as_a_fragment(comment_on(line, marker))) {
        findings.push_back(
            {file, i + 1, "the comment is no sentence: say what the thing is, or why"});
      }
      goes_on = alone;
    }
  }
  return findings;
}

}  // namespace kvd::lint
