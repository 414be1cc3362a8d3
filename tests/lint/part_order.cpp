#include "tests/lint/part_order.hpp"

#include <algorithm>
#include <optional>
#include <regex>
#include <string>
#include <string_view>

namespace kvd::lint {
namespace fs = std::filesystem;
namespace {

struct Room {
  std::string_view folder;
  std::vector<std::string_view> parts;  // from the one that knows nobody to the one that knows all
};

const std::vector<Room>& rooms() {
  static const std::vector<Room> kRooms = {
      {"kvd/store/",
       {// memory
        "shared_list", "orders", "device_pools", "holds", "mappings", "staging", "tiers",
        // blocks, and what they are found by
        "pieces", "key", "entries", "block_table", "blocks", "block_rows", "blocks_validate",
        "block_moves", "transfers", "compaction",
        // what is cached
        "digest_table", "keys_being_stored", "id_heap", "eviction", "turnover_eviction",
        "disk_admission", "expected_chains", "disk_directory", "disk_shares", "index",
        "index_validate", "cache", "cache_disk", "placed_rows", "parked_rows", "kept_rows",
        // all of them
        "store"}},
      {"kvd/core/",
       {// what goes in and out
        "devices", "tuning", "inputs", "status", "effects", "events", "config", "kept_for_engines",
        // records
        "request", "session",
        // what all parts stand on
        "fair_grants", "context", "requests", "classes", "region_copies", "knowledge", "lateness",
        "placing", "serving_order", "spaces", "budget", "cache_copies", "disk_classes",
        "disk_cache", "disk_cache_reads", "engine_caches", "engine_caches_disk", "keeping",
        "prefixes", "request_memory", "drains", "ground",
        // who moves
        "compactor", "dram_copies", "streams", "needs", "supply", "shares", "swaps", "skips",
        "promises", "regions",
        // who decides
        "layer_plans", "claims", "admission", "reservations", "rotation", "engine_placed",
        "silence", "standstills",
        // what an engine says and hears
        "reports", "replies", "steps", "ranks", "sessions", "commands",
        // all of them
        "parts", "waits", "status_builder", "controller"}},
  };
  return kRooms;
}

std::optional<std::size_t> place_of(const Room& room, const std::string& part) {
  const auto found = std::find(room.parts.begin(), room.parts.end(), part);
  if (found == room.parts.end()) return std::nullopt;
  return static_cast<std::size_t>(found - room.parts.begin());
}

void check_file(const fs::path& root, const fs::path& file, const Room& room,
                std::vector<Finding>& findings) {
  const std::string part = file.stem().string();
  const auto own = place_of(room, part);
  if (!own) {
    findings.push_back({file, 1, "has no place in the table of tests/lint/part_order.cpp"});
    return;
  }
  const std::regex include(R"re(^\s*#\s*include\s+"()re" + std::string(room.folder) +
                           R"re()(\w+)\.hpp")re");
  const std::vector<std::string> lines = lines_of(root / file);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    std::smatch match;
    if (!std::regex_search(lines[i], match, include)) continue;
    const auto other = place_of(room, match[2]);
    if (other && *other > *own) {
      findings.push_back({file, i + 1,
                          part + " may not know " + match[2].str() + ", which stands " +
                              "below it in tests/lint/part_order.cpp"});
    }
  }
}

}  // namespace

std::vector<Finding> check_part_order(const fs::path& root) {
  std::vector<Finding> findings;
  for (const fs::path& file : files_under(root, is_source)) {
    for (const Room& room : rooms()) {
      if (file.string().starts_with(room.folder)) check_file(root, file, room, findings);
    }
  }
  return findings;
}

}  // namespace kvd::lint
