#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvd {

/// Levenshtein: insertions, deletions and replacements that turn one text into the other.
inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0u);
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

/// The hint for a word that is none of these: `"stauts" is no command; the nearest is status`. ""
/// where the word is one of them, or resembles none.
inline std::string misspelt(std::string_view word, std::string_view kind,
                            const std::vector<std::string>& names) {
  constexpr std::size_t kMostSlips = 2;
  std::string_view nearest;
  std::size_t least = kMostSlips + 1;
  for (const std::string& name : names) {
    const std::size_t slips = edit_distance(word.substr(0, name.size() + least), name);
    if (slips < least) least = slips, nearest = name;
  }
  if (least == 0 || nearest.empty()) return "";
  std::string said = "\"";
  return said.append(word)
      .append("\" is no ")
      .append(kind)
      .append("; the nearest is ")
      .append(nearest);
}

}  // namespace kvd
