#include "kvd/daemon/config/copy_table.hpp"

#include <toml++/toml.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "kvd/daemon/config/config_sources.hpp"
#include "kvd/daemon/config/config_values.hpp"

namespace kvd::daemon {
namespace {

constexpr std::int64_t kMaxSegment = kGiB.value;
constexpr const char* kRemedy = "; write it anew: kvd-bench copy --matrix --out FILE";

struct Row {
  std::string direction;
  std::int64_t count = 0, engine_from = 0, peak_from = 0;
};

Error fault(const std::string& file, const toml::node& node, const std::string& what) {
  return make_error(ErrorCode::kInvalidArgument,
                    file + ":" + std::to_string(node.source().begin.line) + ": " + what + kRemedy);
}

Result<Row> read_row(const std::string& file, const toml::node& node) {
  const toml::table* table = node.as_table();
  if (table == nullptr) return fault(file, node, "[[crossover]] must hold tables");
  Row row;
  row.direction = (*table)["direction"].value_or(std::string());
  if (row.direction != "h2d" && row.direction != "d2h" && row.direction != "duplex" &&
      row.direction != "host") {
    return fault(file, node, "direction must be h2d, d2h, duplex or host");
  }
  const std::pair<const char*, std::int64_t*> numbers[] = {
      {"count", &row.count}, {"engine_from", &row.engine_from}, {"peak_from", &row.peak_from}};
  for (const auto& [name, into] : numbers) {
    *into = (*table)[name].value_or(std::int64_t{-1});
    if (*into < 0 || *into > kMaxSegment) {
      return fault(file, node, std::string(name) + " must be a number from 0 to 1 GiB");
    }
  }
  return row;
}

/// For each direction, the size in the row with the largest count; then the larger of the two. Rows
/// with a zero are left out.
Bytes largest(const std::vector<Row>& rows, std::int64_t Row::*member) {
  std::map<std::string, const Row*> best;
  for (const Row& row : rows) {
    if (row.direction == "duplex" || row.*member == 0) continue;
    const Row*& chosen = best[row.direction];
    if (chosen == nullptr || row.count > chosen->count) chosen = &row;
  }
  std::int64_t size = 0;
  for (const auto& [direction, row] : best) size = std::max(size, row->*member);
  return Bytes(size);
}

Result<CopyTable> interpret(const std::string& file, const toml::table& root) {
  CopyTable table;
  table.source = root["source"].value_or(std::string());
  table.device = root["device"].value_or(std::string());
  if (table.source != "cuda" && table.source != "host") {
    return fault(file, root, R"(source must be "cuda" or "host")");
  }
  const toml::array* entries = root["crossover"].as_array();
  if (entries == nullptr || entries->empty()) return fault(file, root, "has no [[crossover]]");
  std::vector<Row> rows;
  for (const toml::node& entry : *entries) {
    KVD_ASSIGN_OR_RETURN(Row row, read_row(file, entry));
    rows.push_back(std::move(row));
  }
  // On the host there is no kernel to choose instead.
  if (table.source == "cuda") table.sizes.engine_from = largest(rows, &Row::engine_from);
  const Bytes peak = largest(rows, &Row::peak_from);
  if (peak == Bytes(0)) return fault(file, root, "no row has a peak_from");
  table.sizes.good_slot = peak;
  return table;
}

}  // namespace

Result<CopyTable> read_copy_table(const std::string& file) {
  KVD_ASSIGN_OR_RETURN(const std::string text, read_toml_text(file));
  try {
    return interpret(file, toml::parse(text, file));
  } catch (const toml::parse_error& error) {
    std::ostringstream text;
    text << file << ":" << error.source().begin.line << ": " << error.description() << kRemedy;
    return make_error(ErrorCode::kInvalidArgument, text.str());
  }
}

std::uint32_t default_group(std::uint32_t layers, Bytes per_layer, Bytes slab, Bytes good_slot) {
  std::uint32_t best = 1;
  for (std::uint32_t g = 1; g <= layers && per_layer * g <= slab; ++g) {
    if (layers % g != 0) continue;
    best = g;
    if (per_layer * g >= good_slot) break;
  }
  return best;
}

std::string slot_advice(const core::ModelClass& shape, const CopySizes& sizes) {
  if (shape.slot_bytes() >= sizes.engine_from) return {};
  return "its slots of " + human_size(shape.slot_bytes()) +
         " are copied slower than the link allows: from " + human_size(sizes.engine_from) +
         " on the copy engine is no slower than kernels (copy.table); raise layers_per_block or "
         "block_tokens, or leave layers_per_block to kvd";
}

}  // namespace kvd::daemon
