#pragma once

#include <cstddef>
#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "tests/lint/source_tree.hpp"

namespace kvd::lint {

/// What may exceed a bound, up to the number given, until it is rebuilt. By file and struct, or by
/// field: "kvd/core/ledger/request.hpp: Request", "order.claim".
using Excesses = std::map<std::string, std::size_t>;
constexpr std::size_t kAList = std::numeric_limits<std::size_t>::max();  ///< may grow

constexpr std::size_t kMostLeaves = 40;
/// Parts that write one field of a request: one where kvd places blocks, one where an engine does.
constexpr std::size_t kMostWriters = 2;

/// Checks that no struct in a header outside of tests/ holds more values than a reader can keep in
/// mind: its fields, with those of its bases and of the structs among its fields in their place. A
/// class counts as one value, for it hides its own. `large` may only shrink.
std::vector<Finding> check_leaf_fields(const std::filesystem::path& root, const Excesses& large);

/// Checks that no field of a request (kvd/core/ledger/request.hpp) is written by more than
/// kMostWriters parts of kvd/core. A part is its header and its sources together. `large` may only
/// shrink.
std::vector<Finding> check_writers(const std::filesystem::path& root, const Excesses& large);

}  // namespace kvd::lint
