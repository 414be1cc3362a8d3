#pragma once

#include <string>
#include <vector>

#include "kvd/sim/chart/chart.hpp"

namespace kvd::sim {

struct TextTable {
  std::string caption;
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;
};

struct Section {
  std::string id;
  std::string title;
  std::vector<std::string> paragraphs;
  std::vector<TextTable> tables;
  std::vector<Chart> charts;
};

/// Sections under a common heading.
struct Part {
  std::string title;
  std::vector<Section> sections;
};

struct Page {
  std::string title;
  std::vector<std::string> paragraphs;
  std::vector<Part> parts;
};

/// Marks a page as made here, so that a later report may replace its folder.
inline constexpr const char* kPageMark = R"(<meta name="generator" content="kvd-sim">)";

/// One HTML document that needs nothing else: no script, no font, no file beside it.
[[nodiscard]] std::string html_of(const Page& page);

}  // namespace kvd::sim
