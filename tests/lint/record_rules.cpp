#include "tests/lint/record_rules.hpp"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>

#include "tests/lint/class_sizes.hpp"
#include "tests/lint/code_text.hpp"

namespace kvd::lint {
namespace fs = std::filesystem;
namespace {

constexpr const char* kRequests = "kvd/core/ledger/request.hpp";

/// The structs of a tree, by the last part of their names.
class Structs {
 public:
  explicit Structs(const fs::path& root) : all_(class_sizes_under(root)) {
    for (const ClassSize& one : all_) {
      if (one.is_struct) by_name_.emplace(last_part(one.name), &one);
    }
  }

  [[nodiscard]] const std::vector<ClassSize>& all() const { return all_; }

  /// The struct that a member of `around` means by `type`: its own, one of its file, or the only
  /// one of that name. Null for every other type.
  [[nodiscard]] const ClassSize* find(const std::string& type, const ClassSize& around) const {
    const auto [begin, end] = by_name_.equal_range(last_part(type));
    const ClassSize* found = nullptr;
    for (auto at = begin; at != end; ++at) {
      const ClassSize* one = at->second;
      if (one->name == around.name + "::" + type) return one;
      if (found == nullptr || one->file == around.file) found = one;
    }
    const bool sure =
        found != nullptr && (std::distance(begin, end) == 1 || found->file == around.file);
    return sure && found != &around ? found : nullptr;
  }

  /// The structs that a head names after its colon.
  [[nodiscard]] std::vector<const ClassSize*> bases_of(const ClassSize& one) const {
    static const std::regex kName(R"([\w:]*\w)");
    std::vector<const ClassSize*> found;
    for (std::sregex_iterator at(one.bases.begin(), one.bases.end(), kName), end; at != end; ++at) {
      const ClassSize* base = find(at->str(), one);
      if (base != nullptr) found.push_back(base);
    }
    return found;
  }

  [[nodiscard]] std::size_t leaves(const ClassSize& one) const {
    std::size_t count = 0;
    for (const ClassSize* base : bases_of(one)) count += leaves(*base);
    for (const Field& field : one.fields) {
      const ClassSize* inner = find(field.type, one);
      count += inner == nullptr ? 1 : leaves(*inner);
    }
    return count;
  }

 private:
  static std::string last_part(const std::string& name) {
    const auto colon = name.rfind(':');
    return colon == std::string::npos ? name : name.substr(colon + 1);
  }

  std::vector<ClassSize> all_;
  std::multimap<std::string, const ClassSize*> by_name_;
};

/// Findings for what exceeds its bound, and for entries of the list that are too high by now.
std::vector<Finding> compare(const std::map<std::string, std::size_t>& counts, std::size_t most,
                             const Excesses& large, const std::string& what) {
  std::vector<Finding> findings;
  for (const auto& [name, count] : counts) {
    const auto listed = large.find(name);
    const std::size_t bound = listed == large.end() ? most : listed->second;
    if (count <= bound) continue;
    findings.push_back(
        {name, 0,
         "has " + std::to_string(count) + " " + what + ", more than " + std::to_string(bound)});
  }
  for (const auto& [name, bound] : large) {
    const auto found = counts.find(name);
    const std::size_t count = found == counts.end() ? 0 : found->second;
    if ((count < bound && bound != kAList) || count <= most) {
      findings.push_back({name, 0, "has " + std::to_string(count) + " by now: adapt the list"});
    }
  }
  return findings;
}

/// The fields of a request as code names them, those of its structs behind their own names:
/// "verdict", "order.claim".
std::set<std::string> fields_of_requests(const Structs& structs) {
  std::set<std::string> names;
  for (const ClassSize& one : structs.all()) {
    if (one.file != kRequests) continue;
    if (one.name != "Seen" && one.name != "Request" && one.name != "PlacedRequest") continue;
    for (const Field& field : one.fields) {
      const ClassSize* inner = structs.find(field.type, one);
      if (inner == nullptr || inner->file != kRequests) {
        names.insert(field.name);
        continue;
      }
      for (const Field& leaf : inner->fields) names.insert(field.name + "." + leaf.name);
    }
  }
  return names;
}

/// The members of requests that code writes: assigns, counts up or down, or changes by what a
/// container has for it. A field of the same name behind another's ("order.place") is not meant.
std::set<std::string> written_in(const std::string& code) {
  static const std::regex kWrite(
      R"(((?:\+\+|--)\s*)?\b(?:r|request|latest|known|victim|one)(?:->|\.)(\w+(?:\.\w+)?))"
      R"((\s*(?:=(?!=)|[-+|]=|\+\+|--)|\.(?:clear|emplace|erase|insert|push_back|reset|resize)\w*\()?)");
  static const std::regex kChange(R"(\.(?:clear|emplace|erase|insert|push_back|reset|resize)\w*$)");
  std::set<std::string> written;
  for (std::sregex_iterator at(code.begin(), code.end(), kWrite), end; at != end; ++at) {
    const std::string name = (*at)[2];
    const std::string member = std::regex_replace(name, kChange, "");
    if ((*at)[1].matched || (*at)[3].matched || member != name) written.insert(member);
  }
  return written;
}

}  // namespace

std::vector<Finding> check_leaf_fields(const fs::path& root, const Excesses& large) {
  const Structs structs(root);
  std::map<std::string, std::size_t> counts;
  for (const ClassSize& one : structs.all()) {
    if (!one.is_struct) continue;
    counts[one.file.string() + ": " + one.name] = structs.leaves(one);
  }
  return compare(counts, kMostLeaves, large, "values with those of its structs");
}

std::vector<Finding> check_writers(const fs::path& root, const Excesses& large) {
  std::map<std::string, std::string> parts;
  for (const fs::path& file : files_under(root, is_source)) {
    if (!file.string().starts_with("kvd/core/")) continue;
    std::ifstream stream(root / file);
    const std::string text{std::istreambuf_iterator<char>(stream), {}};
    parts[fs::path(file).replace_extension().string()] += only_code(text);
  }
  const std::set<std::string> fields = fields_of_requests(Structs(root));
  std::map<std::string, std::size_t> counts;
  for (const auto& [part, code] : parts) {
    for (const std::string& field : written_in(code)) {
      if (fields.contains(field)) ++counts[field];
    }
  }
  return compare(counts, kMostWriters, large, "parts that write it");
}

}  // namespace kvd::lint
