#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/lint/source_tree.hpp"

namespace kvd::lint {

struct Field {
  std::string type;  ///< as written, or the name of the struct that is defined there
  std::string name;
};

/// What a header declares in one class or struct. Inherited members, constants, types, friends and
/// deleted functions are not counted; overloads are, one by one.
struct ClassSize {
  std::filesystem::path file;
  std::size_t line = 0;
  std::string name;  ///< with the classes around it: Controller::Config
  std::size_t functions = 0;
  std::vector<Field> fields;
  bool is_struct = false;
  std::string bases;  ///< as written, after the colon
};

/// The classes and structs that `text`, of a C++ header, defines.
std::vector<ClassSize> class_sizes(const std::filesystem::path& file, const std::string& text);

/// The classes and structs of every header outside of tests/.
std::vector<ClassSize> class_sizes_under(const std::filesystem::path& root);

/// A class that may be larger than the others, up to these numbers, until it is rebuilt.
struct LargeClass {
  std::filesystem::path file;
  std::string name;
  std::size_t functions = 0;
  std::size_t fields = 0;
};

constexpr std::size_t kMostFunctions = 40;
constexpr std::size_t kMostFields = 20;

/// Checks that no class in a header outside of tests/ has more functions or fields than a reader
/// can keep in mind. `large` may only shrink: one that grows is a finding, and so is one that fits
/// by now.
std::vector<Finding> check_class_sizes(const std::filesystem::path& root,
                                       const std::vector<LargeClass>& large);

}  // namespace kvd::lint
