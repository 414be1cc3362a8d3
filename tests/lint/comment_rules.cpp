#include "tests/lint/comment_rules.hpp"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <sstream>

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

}  // namespace

int comment_percent(const std::string& text) {
  int lines = 0, comments = 0;
  bool inside = false;  // of a comment that began on a line before
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

}  // namespace kvd::lint
