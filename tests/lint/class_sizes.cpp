#include "tests/lint/class_sizes.hpp"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>
#include <optional>
#include <regex>
#include <string_view>

#include "tests/lint/code_text.hpp"

namespace kvd::lint {
namespace fs = std::filesystem;
namespace {

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// Reads the members of classes one after the other.
class Reader {
 public:
  Reader(const fs::path& file, const std::string& code) : file_(file), code_(code) {}

  std::vector<ClassSize> read() {
    while (at_ < code_.size()) {
      if (word_at(at_) == "enum") at_ = std::min(code_.find_first_of("{;", at_), code_.size() - 1);
      if (!take_class("", nullptr)) ++at_;
    }
    return std::move(found_);
  }

 private:
  struct Head {
    std::string name;
    std::size_t body = 0;  ///< after its brace
    bool is_struct = false;
    std::string bases;
  };

  [[nodiscard]] std::string_view word_at(std::size_t at) const {
    if (at > 0 && is_word(code_[at - 1])) return {};
    std::size_t end = at;
    while (end < code_.size() && is_word(code_[end])) ++end;
    return std::string_view(code_).substr(at, end - at);
  }

  void skip_spaces() {
    while (at_ < code_.size() && std::isspace(static_cast<unsigned char>(code_[at_])) != 0) ++at_;
  }

  /// The head of a class that is defined here, not only named.
  [[nodiscard]] std::optional<Head> head() const {
    const std::string_view keyword = word_at(at_);
    if (keyword != "class" && keyword != "struct" && keyword != "union") return std::nullopt;
    static const std::regex kHead(R"re(\s*([\w:]*)\s*(final\s*)?(:[^:][^;{]*)?\{)re");
    std::smatch match;
    const auto from = code_.begin() + static_cast<std::ptrdiff_t>(at_ + keyword.size());
    const auto flags = std::regex_constants::match_continuous;
    if (!std::regex_search(from, code_.end(), match, kHead, flags)) return std::nullopt;
    return Head{match[1], at_ + keyword.size() + static_cast<std::size_t>(match.length()),
                keyword == "struct", match[3]};
  }

  /// A class definition at this place, with its members; `outer`: of what it is a member.
  bool take_class(const std::string& around, ClassSize* outer) {
    const auto found = head();
    if (!found) return false;
    const auto begin = code_.begin();
    const auto lines = std::count(begin, begin + static_cast<std::ptrdiff_t>(at_), '\n');
    ClassSize size{file_,
                   static_cast<std::size_t>(lines) + 1,
                   around + found->name,
                   0,
                   {},
                   found->is_struct,
                   found->bases};
    at_ = found->body;
    for (skip_spaces(); at_ < code_.size() && code_[at_] != '}'; skip_spaces()) take_member(size);
    ++at_;
    found_.push_back(size);
    if (outer) take_declarators(*outer, found->name);
    return true;
  }

  void take_member(ClassSize& size) {
    if (code_[at_] == ';') {
      ++at_;
      return;
    }
    if (take_class(size.name + "::", &size)) return;
    const std::string_view word = word_at(at_);
    if (word == "public" || word == "protected" || word == "private") {
      at_ = code_.find(':', at_) + 1;
    } else if (word == "template") {
      at_ = code_.find('<', at_);
      skip_angles();
    } else if (word == "using" || word == "friend" || word == "typedef" ||
               word == "static_assert") {
      skip_to_end();
    } else if (word == "enum") {
      at_ = code_.find_first_of("{;", at_);
      if (code_[at_] == '{') skip_brackets();
      take_declarators(size, "enum");
    } else {
      take_declaration(size);
    }
  }

  /// A field, several of one type, or a function.
  void take_declaration(ClassSize& size) {
    const std::size_t from = at_;
    while (at_ < code_.size()) {
      const std::string_view word = word_at(at_);
      if (word == "operator") return take_function(size);
      if (word == "decltype" || word == "alignas") {
        at_ = code_.find('(', at_);
        skip_brackets();
      } else if (!word.empty()) {
        at_ += word.size();
      } else if (code_[at_] == '<') {
        skip_angles();
      } else if (code_[at_] == '(') {
        return take_function(size);
      } else if (code_[at_] == ',' || code_[at_] == '=' || code_[at_] == '{' || code_[at_] == ';') {
        static const std::regex kField(R"re(\s*([^]*?)\s*(\w+)(\s|\[[^]*\])*)re");
        const std::string declared = code_.substr(from, at_ - from);
        std::smatch match;
        const bool own = std::regex_match(declared, match, kField) &&
                         !std::regex_search(declared, std::regex(R"(\bstatic\b)"));
        if (own) size.fields.push_back({match[1], match[2]});
        take_names(own ? &size : nullptr, match[1]);
        return;
      } else {
        ++at_;
      }
    }
  }

  /// From its name or parameters to its end.
  void take_function(ClassSize& size) {
    bool initialises = false;  // the list of a constructor: a brace after a name is no body
    bool deleted = false;
    for (char before = ' '; at_ < code_.size(); before = code_[at_ - 1]) {
      const char c = code_[at_];
      if (c == ';' || (c == '{' && !(initialises && is_word(before)))) break;
      if (c == ':' && code_[at_ + 1] != ':' && before != ':') initialises = true;
      deleted = deleted || word_at(at_) == "delete";
      c == '(' || c == '{' ? skip_brackets() : void(++at_);
    }
    size.functions += deleted ? 0 : 1;
    code_[at_] == '{' ? skip_brackets() : void(++at_);
  }

  /// From a bracket to behind the one that closes it.
  void skip_brackets() {
    int depth = 0;
    for (; at_ < code_.size(); ++at_) {
      if (std::string_view("({[").find(code_[at_]) != std::string_view::npos) ++depth;
      if (std::string_view(")}]").find(code_[at_]) != std::string_view::npos && --depth == 0) break;
    }
    ++at_;
  }

  /// The same for template arguments, which may hold parentheses.
  void skip_angles() {
    int depth = 0;
    while (at_ < code_.size()) {
      const char c = code_[at_];
      if (c == '(' || c == '{') {
        skip_brackets();
        continue;
      }
      ++at_;
      if (c == '<') ++depth;
      if (c == '>' && --depth == 0) return;
    }
  }

  void skip_to_end() { take_names(nullptr, ""); }

  /// Fields of this type whose names follow the commas up to the semicolon; ends behind it.
  void take_names(ClassSize* size, const std::string& type) {
    while (at_ < code_.size() && code_[at_] != ';') {
      const char c = code_[at_];
      c == '(' || c == '{' || c == '[' ? skip_brackets() : void(++at_);
      if (c == ',') take_name(size, type);
    }
    ++at_;
  }
  void take_name(ClassSize* size, const std::string& type) {
    skip_spaces();
    if (size != nullptr) size->fields.push_back({type, std::string(word_at(at_))});
  }

  /// What a type is used for at once: `struct A {} a, b;` declares two.
  void take_declarators(ClassSize& size, const std::string& type) {
    skip_spaces();
    if (at_ < code_.size() && code_[at_] != ';') take_name(&size, type);
    take_names(&size, type);
  }

  const fs::path& file_;
  const std::string& code_;
  std::size_t at_ = 0;
  std::vector<ClassSize> found_;
};

bool is_checked(const fs::path& file) {
  const std::string name = file.string();
  return !name.starts_with("tests/") && name.ends_with(".hpp");
}

}  // namespace

std::vector<ClassSize> class_sizes(const fs::path& file, const std::string& text) {
  const std::string code = only_code(text);
  return Reader(file, code).read();
}

std::vector<ClassSize> class_sizes_under(const fs::path& root) {
  std::vector<ClassSize> all;
  const auto in_kvd = [&](const fs::path& file) {
    return is_checked(file.lexically_relative(root));
  };
  for (const fs::path& file : files_under(root, in_kvd)) {
    std::ifstream stream(root / file);
    const std::string text{std::istreambuf_iterator<char>(stream), {}};
    for (ClassSize& size : class_sizes(file, text)) all.push_back(std::move(size));
  }
  return all;
}

std::vector<Finding> check_class_sizes(const fs::path& root, const std::vector<LargeClass>& large) {
  std::vector<Finding> findings;
  std::vector<const LargeClass*> needed;
  for (const ClassSize& size : class_sizes_under(root)) {
    const bool fits = size.functions <= kMostFunctions && size.fields.size() <= kMostFields;
    const auto listed = std::find_if(large.begin(), large.end(), [&](const LargeClass& one) {
      return one.file == size.file && one.name == size.name;
    });
    if (fits) continue;
    if (listed != large.end()) needed.push_back(&*listed);
    const std::size_t functions =
        std::max(kMostFunctions, listed == large.end() ? 0 : listed->functions);
    const std::size_t fields = std::max(kMostFields, listed == large.end() ? 0 : listed->fields);
    if (size.functions <= functions && size.fields.size() <= fields) continue;
    findings.push_back({size.file, size.line,
                        size.name + " has " + std::to_string(size.functions) + " functions and " +
                            std::to_string(size.fields.size()) + " fields, more than " +
                            std::to_string(functions) + " and " + std::to_string(fields) +
                            ": make parts of it, each with a header of its own"});
  }
  for (const LargeClass& one : large) {
    if (std::find(needed.begin(), needed.end(), &one) != needed.end()) continue;
    findings.push_back({one.file, 0, one.name + " fits or is gone: take it off the list"});
  }
  return findings;
}

}  // namespace kvd::lint
