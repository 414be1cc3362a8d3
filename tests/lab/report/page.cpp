#include "tests/lab/report/page.hpp"

namespace kvd::sim {
namespace {

constexpr const char* kStyle = R"(<style>
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #f6f6f4;
       max-width: 62rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { line-height: 1.2; margin-bottom: .25rem; }
h2 { margin-top: 3rem; border-bottom: 2px solid #1a1a1a; }
section { background: #fff; border: 1px solid #ddd; border-radius: 6px; padding: .25rem 1.25rem 1rem;
          margin: 1.25rem 0; }
h3 { margin: .9rem 0 .4rem; }
p { max-width: 46rem; }
nav ul { columns: 2 20rem; padding-left: 1.1rem; font-size: .92rem; }
figure { margin: 1rem 0; }
svg { width: 100%; max-width: 720px; height: auto; display: block; }
table { border-collapse: collapse; font-size: .88rem; margin: .6rem 0; }
caption { text-align: left; color: #444; padding-bottom: .2rem; }
th, td { border: 1px solid #ddd; padding: .2rem .5rem; text-align: right; vertical-align: top; }
th[scope=row], thead th:first-child, table.words td, table.words th { text-align: left; }
thead th { background: #f0f0ee; }
td.same { background: #e2f3ea; } td.differs { background: #fbe9dc; }
details { margin: .3rem 0; } summary { cursor: pointer; color: #0b5394; }
.scroll { overflow-x: auto; }
</style>
)";

std::string paragraphs_of(const std::vector<std::string>& paragraphs) {
  std::string out;
  for (const std::string& text : paragraphs) out += "<p>" + escaped(text) + "</p>\n";
  return out;
}

/// A cell that is a verdict gets its colour; the word itself says the same.
std::string cell_of(const std::string& text) {
  const char* mark = text == "same"      ? " class=\"same\""
                     : text == "differs" ? " class=\"differs\""
                                         : "";
  return std::string("<td") + mark + ">" + escaped(text) + "</td>";
}

std::string words_of(const TextTable& table) {
  std::string out = "<div class=\"scroll\"><table class=\"words\">\n";
  if (!table.caption.empty()) out += "<caption>" + escaped(table.caption) + "</caption>\n";
  out += "<thead><tr>";
  for (const auto& head : table.head) out += "<th scope=\"col\">" + escaped(head) + "</th>";
  out += "</tr></thead>\n<tbody>\n";
  for (const auto& row : table.rows) {
    out += "<tr>";
    for (const auto& cell : row) out += cell_of(cell);
    out += "</tr>\n";
  }
  return out + "</tbody>\n</table></div>\n";
}

std::string figure_of(const Chart& chart) {
  return "<figure>\n" + svg_of(chart) + "<details><summary>Data: " + escaped(chart.title) +
         "</summary>\n<div class=\"scroll\">" + table_of(chart) + "</div></details>\n</figure>\n";
}

std::string section_of(const Section& section) {
  std::string out = "<section id=\"" + escaped(section.id) + "\">\n<h3>" + escaped(section.title) +
                    "</h3>\n" + paragraphs_of(section.paragraphs);
  for (const TextTable& table : section.tables) out += words_of(table);
  for (const Chart& chart : section.charts) out += figure_of(chart);
  return out + "</section>\n";
}

std::string contents_of(const Page& page) {
  std::string out = "<nav aria-label=\"Contents\"><ul>\n";
  for (const Part& part : page.parts) {
    for (const Section& section : part.sections) {
      out +=
          "<li><a href=\"#" + escaped(section.id) + "\">" + escaped(section.title) + "</a></li>\n";
    }
  }
  return out + "</ul></nav>\n";
}

}  // namespace

std::string html_of(const Page& page) {
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
  out += kPageMark;
  out += "\n<title>" + escaped(page.title) + "</title>\n" + kStyle +
         "</head>\n<body>\n<header><h1>" + escaped(page.title) + "</h1>\n" +
         paragraphs_of(page.paragraphs) + "</header>\n" + contents_of(page) + "<main>\n";
  for (const Part& part : page.parts) {
    out += "<h2>" + escaped(part.title) + "</h2>\n";
    for (const Section& section : part.sections) out += section_of(section);
  }
  return out + "</main>\n</body>\n</html>\n";
}

}  // namespace kvd::sim
