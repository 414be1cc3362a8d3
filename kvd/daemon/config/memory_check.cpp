#include "kvd/daemon/config/memory_check.hpp"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "kvd/daemon/config/config_values.hpp"
#include "kvd/daemon/config/needs.hpp"

// RLIMIT_MEMLOCK has no say on the host backend: its pools are populated, not locked.

namespace kvd::daemon {
namespace fs = std::filesystem;
namespace {

using Limit = MemoryRoom::Limit;

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

/// Reads the number in a file of "label kilobytes" lines.
std::optional<Bytes> kilobytes_in(const fs::path& file, const std::string& label) {
  const auto number = number_in(file, label);
  return number ? std::optional(number->value * kKiB) : std::nullopt;
}

Result<MemoryRoom> machine_room(const std::string& root, Bytes reserve) {
  const auto total = kilobytes_in(root + "/proc/meminfo", "MemTotal:");
  const auto available = kilobytes_in(root + "/proc/meminfo", "MemAvailable:");
  if (!total || !available) {
    return make_error(ErrorCode::kUnavailable,
                      "/proc/meminfo says no MemAvailable, so nobody knows whether the pools fit; "
                      "mount /proc");
  }
  const auto limit = [&](const char* name, Bytes bytes) {
    return Limit{std::max(Bytes(0), bytes - reserve),
                 name + (" " + human_size(bytes)) + " - pool.reserve " + human_size(reserve)};
  };
  return MemoryRoom{limit("MemTotal", *total), limit("MemAvailable", *available)};
}

/// The names of the same files in the two versions of control groups.
struct GroupFiles {
  std::string folder;
  std::vector<std::string> limits;
  std::string usage;
  std::string cache;  ///< line of memory.stat
};

// Beyond memory.high nothing is refused. The kernel makes a process that takes more wait, and kvd
// would stand still.
const GroupFiles kVersion2 = {
    "/sys/fs/cgroup", {"memory.max", "memory.high"}, "memory.current", "inactive_file"};
const GroupFiles kVersion1 = {"/sys/fs/cgroup/memory",
                              {"memory.limit_in_bytes"},
                              "memory.usage_in_bytes",
                              "total_inactive_file"};

void take_least(Limit& limit, Limit other) {
  if (other.bytes < limit.bytes) limit = std::move(other);
}

/// Page cache that nobody uses counts as free: the kernel drops it before it refuses memory, and a
/// group that has read many files would otherwise look full for ever.
void add_group_limit(const fs::path& folder, const std::string& shown, const GroupFiles& files,
                     MemoryRoom& room) {
  // Version 1 writes "no limit" as nearly 2^63.
  constexpr Bytes kNoLimit{std::int64_t{1} << 62};
  const auto usage = number_in(folder / files.usage, "");
  for (const std::string& name : files.limits) {
    const auto limit = number_in(folder / name, "");
    if (!limit || !usage || *limit >= kNoLimit) continue;
    const Bytes cache = number_in(folder / "memory.stat", files.cache).value_or(Bytes(0));
    const Bytes used = std::max(Bytes(0), *usage - cache);
    const std::string text = name + " " + human_size(*limit), of = " of cgroup " + shown;
    take_least(room.most, {*limit, text + of});
    take_least(room.now, {std::max(Bytes(0), *limit - used),
                          text + " - " + human_size(used) + " in use," + of});
  }
}

/// Limits of a group and its ancestors. A container may be told a path that it cannot see; the
/// folders that do not exist for it are passed over.
void add_group_limits(const std::string& root, const GroupFiles& files, const std::string& group,
                      MemoryRoom& room) {
  for (fs::path path = group; !path.empty(); path = path.parent_path()) {
    const fs::path folder = root + files.folder + (path == "/" ? "" : path.string());
    add_group_limit(folder, path.string(), files, room);
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
void add_all_group_limits(const std::string& root, MemoryRoom& room) {
  std::ifstream stream(root + "/proc/self/cgroup");
  for (std::string line; std::getline(stream, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers.empty()) add_group_limits(root, kVersion2, group, room);
    if (names_memory(controllers)) add_group_limits(root, kVersion1, group, room);
  }
}

}  // namespace

Result<MemoryRoom> memory_room(Bytes reserve, const std::string& root) {
  KVD_ASSIGN_OR_RETURN(MemoryRoom room, machine_room(root, reserve));
  add_all_group_limits(root, room);
  return room;
}

Status check_memory(Bytes pools, Bytes beside, const MemoryRoom& room, const std::string& names) {
  if (pools + beside <= room.most.bytes) return {};
  return make_error(ErrorCode::kOutOfMemory,
                    names + ": " + human_size(pools) + ", and " + human_size(beside) +
                        " for kvd itself, exceeds what this machine can give (" +
                        human_size(room.most.bytes) + ": " + room.most.reason + "); lower " +
                        names + ", or raise the limit");
}

kernels::MayTake memory_gate(Bytes reserve, const std::string& root) {
  return [reserve, root](Bytes wanted) -> Status {
    KVD_ASSIGN_OR_RETURN(const MemoryRoom room, memory_room(reserve, root));
    const Bytes held = kilobytes_in(root + "/proc/self/status", "RssAnon:").value_or(Bytes(0));
    const Bytes free = kept_free(held);
    if (wanted + page_overhead(wanted) + free <= room.now.bytes) return {};
    return make_error(ErrorCode::kOutOfMemory,
                      "no memory for " + human_size(wanted) +
                          " of a slab: " + human_size(room.now.bytes) + " is left (" +
                          room.now.reason + "), of which kvd itself needs " + human_size(free));
  };
}

}  // namespace kvd::daemon
