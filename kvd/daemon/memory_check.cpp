#include "kvd/daemon/memory_check.hpp"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <vector>

#include "kvd/daemon/config_values.hpp"

// RLIMIT_MEMLOCK has no say on the host backend: its pools are populated, not locked.

namespace kvd::daemon {
namespace fs = std::filesystem;
namespace {

/// Memory that one authority would still give, and the sum behind it, for the message.
struct Limit {
  Bytes room;
  std::string reason;
};

/// The number after `label` in a file of "label number" lines; of the whole file for "".
std::optional<Bytes> number_in(const fs::path& file, const std::string& label) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    std::istringstream words(line);
    std::string word;
    std::int64_t number = 0;
    if (!label.empty() && !(words >> word && word == label)) continue;
    if (words >> number) return Bytes(number);
    return {};  // "max"
  }
  return {};
}

std::optional<Limit> machine_limit(const std::string& root, Bytes reserve) {
  const auto kilobytes = number_in(root + "/proc/meminfo", "MemAvailable:");
  if (!kilobytes) return {};
  const Bytes available = kilobytes->value * kKiB;
  return Limit{std::max(Bytes(0), available - reserve),
               "MemAvailable " + human_size(available) + " - pool.reserve " + human_size(reserve)};
}

/// The names of the same files in the two versions of control groups.
struct GroupFiles {
  std::string folder;
  std::string limit;
  std::string usage;
  std::string cache;  ///< line of memory.stat
};

const GroupFiles kVersion2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"};
const GroupFiles kVersion1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                              "memory.usage_in_bytes", "total_inactive_file"};

/// Page cache that nobody uses counts as free: the kernel drops it before it refuses memory, and a
/// group that has read many files would otherwise look full for ever.
std::optional<Limit> group_limit(const fs::path& folder, const GroupFiles& files,
                                 const std::string& shown) {
  const auto limit = number_in(folder / files.limit, "");
  const auto usage = number_in(folder / files.usage, "");
  // Version 1 writes "no limit" as nearly 2^63.
  constexpr Bytes kNoLimit{std::int64_t{1} << 62};
  if (!limit || !usage || *limit >= kNoLimit) return {};
  const Bytes cache = number_in(folder / "memory.stat", files.cache).value_or(Bytes(0));
  const Bytes used = std::max(Bytes(0), *usage - cache);
  return Limit{std::max(Bytes(0), *limit - used), files.limit + " " + human_size(*limit) + " - " +
                                                      human_size(used) + " in use, of cgroup " +
                                                      shown};
}

/// Limits of a group and its ancestors. A container may be told a path that it cannot see; the
/// folders that do not exist for it are passed over.
void add_group_limits(const std::string& root, const GroupFiles& files, const std::string& group,
                      std::vector<Limit>& limits) {
  for (fs::path path = group; !path.empty(); path = path.parent_path()) {
    const fs::path folder = root + files.folder + (path == "/" ? "" : path.string());
    if (auto limit = group_limit(folder, files, path.string())) limits.push_back(*limit);
    if (path == path.parent_path()) break;
  }
}

bool names_memory(const std::string& controllers) {
  std::istringstream list(controllers);
  for (std::string name; std::getline(list, name, ',');) {
    if (name == "memory") return true;
  }
  return false;
}

/// Each line is "number:controllers:path"; version 2 has number 0 and no controllers.
std::vector<Limit> all_group_limits(const std::string& root) {
  std::vector<Limit> limits;
  std::ifstream stream(root + "/proc/self/cgroup");
  for (std::string line; std::getline(stream, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers.empty()) add_group_limits(root, kVersion2, group, limits);
    if (names_memory(controllers)) add_group_limits(root, kVersion1, group, limits);
  }
  return limits;
}

}  // namespace

Status check_memory(Bytes wanted, Bytes reserve, const std::string& root,
                    const std::string& pools) {
  const auto machine = machine_limit(root, reserve);
  if (!machine) {
    return make_error(ErrorCode::kUnavailable,
                      pools +
                          ": /proc/meminfo says no MemAvailable, so nobody knows "
                          "whether they fit; mount /proc");
  }
  std::vector<Limit> limits = all_group_limits(root);
  limits.push_back(*machine);
  const Limit& least = *std::min_element(
      limits.begin(), limits.end(), [](const Limit& a, const Limit& b) { return a.room < b.room; });
  if (wanted <= least.room) return {};
  return make_error(ErrorCode::kOutOfMemory,
                    pools + ": " + human_size(wanted) + " exceeds what this machine can give (" +
                        human_size(least.room) + ": " + least.reason + "); lower " + pools);
}

}  // namespace kvd::daemon
