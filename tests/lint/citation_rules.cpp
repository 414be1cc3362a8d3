#include "tests/lint/citation_rules.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <regex>
#include <string>
#include <string_view>

namespace kvd::lint {
namespace fs = std::filesystem;
namespace {

struct Document {
  std::string_view name;
  fs::path path;
};
const std::array<Document, 3> kDocuments = {{{"DESIGN.md", "kvd/DESIGN.md"},
                                             {"MODEL.md", "planner/MODEL.md"},
                                             {"NOTEBOOK.md", "tests/lab/NOTEBOOK.md"}}};

// The rules' own tables and examples are no citations.
bool is_read(const fs::path& file) {
  constexpr std::array<std::string_view, 4> kAlso = {".md", ".txt", ".sh", ".py"};
  const bool text =
      is_source(file) || std::find(kAlso.begin(), kAlso.end(), file.extension()) != kAlso.end();
  return text && file.string().find("tests/lint/") == std::string::npos;
}

std::optional<std::string> outside_text(const std::string& line) {
  static const std::regex kOutside(
      "architecture sections? [0-9]|\\(architecture section|architecture\\.md|policy-shapes|"
      "placement-planner|seed-systems|design's references|references on CUDA|"
      "\\b(OF|LK|SI|LB)-[0-9]");
  std::smatch match;
  if (!std::regex_search(line, match, kOutside)) return std::nullopt;
  return "cites \"" + match.str() +
         "\", which is not in the repository: cite kvd/DESIGN.md, "
         "planner/MODEL.md or a published source";
}

bool has_part(const fs::path& document, const std::string& part) {
  const auto starts = [&](const std::string& line) {
    const auto text = line.find_first_not_of("# ");
    const bool heading = line.starts_with('#') && text != std::string::npos;
    return (heading && line.substr(text) == part) || line.starts_with("**" + part + "**") ||
           line.starts_with("**" + part + ".**");
  };
  const auto lines = lines_of(document);
  return std::any_of(lines.begin(), lines.end(), starts);
}

std::optional<std::string> missing_part(const fs::path& root, const std::string& line) {
  if (line.find(".md") == std::string::npos) return std::nullopt;  // a regex costs much
  static const std::regex kCitation(R"re((DESIGN\.md|MODEL\.md|NOTEBOOK\.md)((,? "[^"]+")+))re");
  static const std::regex kPart(R"re("([^"]+)")re");
  for (std::sregex_iterator it(line.begin(), line.end(), kCitation), end; it != end; ++it) {
    const std::string name = (*it)[1], parts = (*it)[2];
    const auto document = std::find_if(kDocuments.begin(), kDocuments.end(),
                                       [&](const Document& d) { return d.name == name; });
    for (std::sregex_iterator part(parts.begin(), parts.end(), kPart); part != end; ++part) {
      if (!has_part(root / document->path, (*part)[1])) {
        return document->path.string() + " has no part \"" + (*part)[1].str() + "\"";
      }
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<Finding> check_citations(const fs::path& root) {
  std::vector<Finding> findings;
  for (const fs::path& file : files_under(root, is_read)) {
    const auto lines = lines_of(root / file);
    for (std::size_t i = 0; i < lines.size(); ++i) {
      auto fault = outside_text(lines[i]);
      if (!fault) fault = missing_part(root, lines[i]);
      if (fault) findings.push_back({file, i + 1, *fault});
    }
  }
  return findings;
}

}  // namespace kvd::lint
