#include "tests/lint/tree_rules.hpp"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>
#include <string>

namespace kvd::lint {
namespace fs = std::filesystem;
namespace {

bool is_test(const fs::path& file) {
  const std::string name = file.filename().string();
  return name.ends_with("_test.cpp") || name.ends_with("_test.py");
}

/// Whether a line of `list` that is no comment has `name` as a word of its own.
bool mentions(const fs::path& list, const std::string& name) {
  const auto has_word = [&](const std::string& line) {
    std::istringstream words(line.substr(0, line.find('#')));
    for (std::string word; words >> word;) {
      std::erase_if(word, [](char c) { return c == '(' || c == ')' || c == '"'; });
      if (word == name) {
        return true;
      }
    }
    return false;
  };
  const auto lines = lines_of(list);
  return std::any_of(lines.begin(), lines.end(), has_word);
}

bool is_listed(const fs::path& root, const fs::path& test) {
  for (fs::path folder = test.parent_path(); !folder.empty(); folder = folder.parent_path()) {
    if (mentions(root / folder / "CMakeLists.txt", test.lexically_relative(folder).string())) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::vector<Finding> check_tests_are_listed(const fs::path& root) {
  std::vector<Finding> findings;
  for (const fs::path& test : files_under(root, is_test)) {
    if (!is_listed(root, test)) {
      findings.push_back({test, 0, "no CMakeLists.txt builds this test"});
    }
  }
  return findings;
}

std::vector<Finding> check_core_asks_for_traits(const fs::path& root) {
  static const std::regex kComparison(R"re((name\(\)|policy)(\.starts_with\(| [!=]= )")re");
  const auto in_core = [](const fs::path& file) {
    return file.string().find("kvd/core/") != std::string::npos;
  };
  std::vector<Finding> findings;
  for (const fs::path& file : files_under(root, in_core)) {
    const auto lines = lines_of(root / file);
    for (std::size_t i = 0; i < lines.size(); ++i) {
      if (std::regex_search(lines[i], kComparison)) {
        findings.push_back({file, i + 1, "asks a policy for its name; give the policy a trait"});
      }
    }
  }
  return findings;
}

std::vector<Finding> check_folder_sizes(const fs::path& root) {
  const auto counts = [](const fs::path& file) {
    return is_source(file) || file.extension() == ".py";
  };
  std::map<std::string, std::size_t> sizes;
  for (const fs::path& file : files_under(root, counts)) ++sizes[file.parent_path().string()];
  std::vector<Finding> findings;
  for (const auto& [folder, files] : sizes) {
    if (folder.starts_with("tests/lab/") || files <= kMostFiles) continue;
    findings.push_back({folder, 0,
                        "has " + std::to_string(files) + " sources, more than " +
                            std::to_string(kMostFiles) + ": cut it into folders"});
  }
  return findings;
}

std::vector<Finding> check_files_are_text(const fs::path& root,
                                          const std::vector<fs::path>& files) {
  constexpr std::uintmax_t kMostBytes = std::uintmax_t{512} * 1024;
  std::vector<Finding> findings;
  for (const fs::path& file : files) {
    if (!fs::is_regular_file(root / file)) continue;  // removed, and not yet committed
    if (fs::file_size(root / file) > kMostBytes) {
      findings.push_back({file, 0, "is larger than 512 KiB"});
      continue;
    }
    std::ifstream stream(root / file, std::ios::binary);
    const std::string bytes(std::istreambuf_iterator<char>(stream), {});
    if (bytes.find('\0') != std::string::npos) findings.push_back({file, 0, "is no text"});
  }
  return findings;
}

}  // namespace kvd::lint
