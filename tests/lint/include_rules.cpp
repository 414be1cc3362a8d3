#include "tests/lint/include_rules.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace kvd::lint {
namespace fs = std::filesystem;
namespace {

using Names = std::vector<std::string_view>;

struct Rule {
  std::string_view subject;  // path prefix of the including room, or of the third-party header
  Names allowed;             // path prefixes it may include, or rooms that may include it
};

/// The rules of which room may include which. The longest matching subject decides. A room may
/// always include itself and ipc/vocabulary. A prefix that ends in no slash also matches the start
/// of a file name.
const std::vector<Rule>& room_rules() {
  static const std::vector<Rule> kRules = {
      {"ipc/vocabulary/", {}},
      {"ipc/digest/", {}},
      {"ipc/wire/", {}},
      {"ipc/shm/", {}},
      {"ipc/transport/", {"ipc/wire/", "ipc/shm/"}},
      {"ipc/http/", {}},
      {"kernels/", {}},
      {"planner/", {"planner/model/", "planner/policy/", "planner/solver/"}},
      {"planner/baselines/", {"planner/policy/"}},
      {"planner/tool/", {"planner/"}},
      {"metrics/", {}},
      {"kvd/pool/", {}},
      {"kvd/store/", {"kvd/pool/"}},
      {"kvd/tiers/disk/", {}},
      {"kvd/tiers/kept/", {"kvd/tiers/disk/files/checksum"}},
      {"kvd/tiers/remote/", {"ipc/digest/", "kvd/tiers/disk/files/"}},
      {"kvd/holder/", {}},
      {"kvd/core/", {"kvd/pool/", "kvd/store/", "planner/model/", "planner/policy/"}},
      {"kvd/mover/", {"kernels/", "ipc/shm/", "kvd/core/door/effect"}},
      {"kvd/toml/", {}},
      {"kvd/sim/", {"kvd/core/", "kvd/pool/", "kvd/store/", "kvd/toml/", "planner/"}},
      {"kvd/ctl/", {}},
      {"kvd/admin/",
       {"ipc/http/", "kvd/core/", "kvd/pool/", "kvd/store/", "planner/model/", "planner/policy/",
        "metrics/"}},
      {"kvd/daemon/",
       {"ipc/", "kernels/", "planner/policy/", "planner/solver/", "metrics/", "kvd/pool/",
        "kvd/store/", "kvd/core/", "kvd/mover/", "kvd/admin/", "kvd/tiers/", "kvd/toml/"}},
      {"client_lib/", {"ipc/", "kernels/"}},
      {"tests/", {""}},
  };
  return kRules;
}

struct Chambers {
  std::string_view room;
  std::vector<std::string_view> names;  // from the one that knows nobody to the one that knows all
};

/// A large room's folders. A file includes its own folder and those named before it; the files that
/// lie in the room itself include all of them.
const std::vector<Chambers>& chambers() {
  static const std::vector<Chambers> kChambers = {
      {"kvd/store/", {"memory", "blocks", "index", "cache"}},
      {"kvd/core/", {"door", "ledger", "cache", "moves", "deciding", "talk"}},
      {"kvd/daemon/", {"base", "config", "machine", "memory", "sessions", "workers", "service"}},
      {"kvd/tiers/disk/", {"files", "workers"}},
      {"planner/policy/", {"admission", "placement"}},
      {"kernels/device/cuda/", {"driver", "memory", "copies"}},
      {"client_lib/src/", {"memory", "attach", "core", "abi"}},
  };
  return kChambers;
}

/// One room per third party; tests may include all of them.
const std::vector<Rule>& library_rules() {
  static const std::vector<Rule> kRules = {
      {"glpk.h", {"planner/solver/"}},
      {"zmq", {"ipc/"}},
      {"boost/", {"ipc/"}},
      {"cpprest/", {"ipc/http/", "kvd/admin/", "kvd/ctl/", "client_lib/engine/http/"}},
      {"pplx/", {"ipc/http/", "kvd/admin/", "kvd/ctl/", "client_lib/engine/http/"}},
      {"prometheus/", {"metrics/exporter/"}},
      {"nlohmann/", {"planner/tool/", "kvd/admin/", "kvd/ctl/", "kvd/sim/"}},
      {"openssl/", {"ipc/digest/"}},
      {"cuda", {"kernels/"}},
      {"numa", {"kernels/"}},
      {"hiredis/", {"kvd/store/"}},
      {"liburing", {"kvd/tiers/disk/"}},
      {"toml++/", {"kvd/toml/"}},
      {"spdlog/", {"kvd/daemon/"}},
      {"fmt/", {"kvd/daemon/"}},
      {"curses.h", {"kvd/ctl/top/"}},
      {"CLI/",
       {"kvd/daemon/", "kvd/ctl/", "kvd/sim/", "planner/tool/", "client_lib/",
        "ipc/vocabulary/command_line.hpp"}},
      {"ggml", {"client_lib/llama/"}},
      {"gguf.h", {"client_lib/llama/"}},
      {"llama.h", {"client_lib/llama/"}},
      {"gtest/", {}},
      {"gmock/", {}},
      {"benchmark/", {}},
  };
  return kRules;
}

/// Headers of the platform: C, POSIX, Linux, compiler. The C++ library needs no list, its names
/// have neither dot nor slash.
bool is_platform_header(std::string_view header) {
  constexpr std::array<std::string_view, 5> kFolders = {"sys/", "linux/", "netinet/", "arpa/",
                                                        "asm/"};
  static const Names kNames = {
      "alloca.h",    "arm_acle.h",  "assert.h",    "cpuid.h",     "cxxabi.h",   "dirent.h",
      "dlfcn.h",     "endian.h",    "errno.h",     "execinfo.h",  "fcntl.h",    "float.h",
      "getopt.h",    "grp.h",       "immintrin.h", "inttypes.h",  "limits.h",   "link.h",
      "malloc.h",    "math.h",      "netdb.h",     "poll.h",      "pthread.h",  "pwd.h",
      "sched.h",     "semaphore.h", "signal.h",    "spawn.h",     "stdalign.h", "stdarg.h",
      "stdatomic.h", "stdbool.h",   "stddef.h",    "stdint.h",    "stdio.h",    "stdlib.h",
      "string.h",    "strings.h",   "syscall.h",   "termios.h",   "time.h",     "ucontext.h",
      "unistd.h",    "x86intrin.h", "emmintrin.h", "smmintrin.h", "xmmintrin.h"};
  const bool is_cxx = header.find_first_of("./") == std::string_view::npos;
  const auto starts = [&](std::string_view folder) { return header.starts_with(folder); };
  return is_cxx || std::any_of(kFolders.begin(), kFolders.end(), starts) ||
         std::find(kNames.begin(), kNames.end(), header) != kNames.end();
}

bool matches_any(std::string_view text, const Names& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](std::string_view prefix) { return text.starts_with(prefix); });
}

const Rule* longest_match(const std::vector<Rule>& rules, std::string_view text) {
  const Rule* best = nullptr;
  for (const Rule& rule : rules) {
    if (text.starts_with(rule.subject) &&
        (best == nullptr || rule.subject.size() > best->subject.size())) {
      best = &rule;
    }
  }
  return best;
}

/// The header named by an #include line, without its quotes or brackets.
std::optional<std::string> included_header(std::string_view line) {
  constexpr std::string_view kSpace = " \t";
  const auto skip = [&](std::string_view text) {
    const auto start = text.find_first_not_of(kSpace);
    return start == std::string_view::npos ? std::string_view() : text.substr(start);
  };
  line = skip(line);
  if (!line.starts_with('#')) {
    return std::nullopt;
  }
  line = skip(line.substr(1));
  if (!line.starts_with("include")) {
    return std::nullopt;
  }
  line = skip(line.substr(7));
  if (!line.starts_with('"') && !line.starts_with('<')) {
    return std::nullopt;
  }
  const auto end = line.find(line.front() == '"' ? '"' : '>', 1);
  return end == std::string_view::npos ? std::nullopt
                                       : std::optional(std::string(line.substr(1, end - 1)));
}

/// The file of this repository that `header` means: from the repository root, the installed
/// headers' root, or beside the including file.
std::optional<fs::path> own_file(const fs::path& root, const fs::path& includer,
                                 const std::string& header) {
  for (const fs::path& base :
       {fs::path(), fs::path("client_lib/include"), includer.parent_path()}) {
    if (fs::is_regular_file(root / base / header)) {
      return (base / header).lexically_normal();
    }
  }
  return std::nullopt;
}

/// The place of a file in its room's order; the files that lie in the room itself come last.
/// Nothing for a folder that the table does not name.
std::optional<std::size_t> floor_of(const Chambers& room, const std::string& file) {
  const std::string inside = file.substr(room.room.size());
  const auto end = inside.find('/');
  if (end == std::string::npos) return room.names.size();
  const auto found = std::find(room.names.begin(), room.names.end(), inside.substr(0, end));
  if (found == room.names.end()) return std::nullopt;
  return static_cast<std::size_t>(found - room.names.begin());
}

std::optional<std::string> fault_of_chamber(const std::string& includer,
                                            const std::string& target) {
  for (const Chambers& room : chambers()) {
    if (!includer.starts_with(room.room) || !target.starts_with(room.room)) continue;
    const auto from = floor_of(room, includer);
    const auto to = floor_of(room, target);
    if (!from || !to) return "this folder has no place in the chambers of include_rules.cpp";
    if (*to > *from) {
      return std::string(includer).append(" may not include ").append(target) +
             ", which is above it";
    }
  }
  return std::nullopt;
}

std::optional<std::string> fault_of_own(const std::string& includer, const std::string& target) {
  const Rule* room = longest_match(room_rules(), includer);
  if (room == nullptr) {
    return "this folder has no line in the arrow table of tests/lint/include_rules.cpp";
  }
  if (target.starts_with(room->subject) && longest_match(room_rules(), target) == room) {
    return fault_of_chamber(includer, target);
  }
  if (target.starts_with("ipc/vocabulary/") || matches_any(target, room->allowed)) {
    return std::nullopt;
  }
  return std::string(room->subject) + " may not include " + target;
}

std::optional<std::string> fault_of_foreign(const std::string& includer,
                                            const std::string& header) {
  if (is_platform_header(header) || includer.starts_with("tests/")) {
    return std::nullopt;
  }
  const Rule* library = longest_match(library_rules(), header);
  if (library == nullptr) {
    return "unknown header " + header +
           ": no file of the tree, and no library with a room in tests/lint/include_rules.cpp";
  }
  if (matches_any(includer, library->allowed)) {
    return std::nullopt;
  }
  return "third party " + header + " does not belong in this room";
}

template <class FaultOf>
std::vector<Finding> scan(const fs::path& root, const std::vector<fs::path>& files,
                          FaultOf fault_of) {
  std::vector<Finding> findings;
  for (const fs::path& file : files) {
    const std::vector<std::string> lines = lines_of(root / file);
    for (std::size_t i = 0; i < lines.size(); ++i) {
      const auto header = included_header(lines[i]);
      const auto fault = header ? fault_of(file, *header) : std::nullopt;
      if (fault) {
        findings.push_back({file, i + 1, *fault});
      }
    }
  }
  return findings;
}

/// A part, its header and its sources together, is a path without its ending.
using Parts = std::map<std::string, std::set<std::string>>;

Parts parts_of(const fs::path& root) {
  Parts includes;
  for (const fs::path& file : files_under(root, is_source)) {
    if (!file.string().starts_with("kvd/") || file.string().starts_with("kvd/daemon/")) continue;
    std::set<std::string>& own = includes[fs::path(file).replace_extension().string()];
    for (const std::string& line : lines_of(root / file)) {
      const auto header = included_header(line);
      if (header) own.insert(fs::path(*header).replace_extension().string());
    }
  }
  return includes;
}

/// Walks from the last part of `way`, and tells of the first way that returns to where it began.
/// `done` has the parts that no circle goes through.
std::optional<std::string> circle_from(const Parts& includes, std::vector<std::string>& way,
                                       std::set<std::string>& done) {
  const auto here = includes.find(way.back());
  if (here == includes.end() || done.contains(way.back())) return std::nullopt;
  for (const std::string& next : here->second) {
    if (next == way.back()) continue;
    const auto met = std::find(way.begin(), way.end(), next);
    if (met != way.end()) {
      std::string circle;
      for (auto part = met; part != way.end(); ++part) circle += *part + " -> ";
      return circle + next;
    }
    way.push_back(next);
    if (auto circle = circle_from(includes, way, done)) return circle;
    way.pop_back();
  }
  done.insert(way.back());
  return std::nullopt;
}

}  // namespace

std::vector<Finding> check_circles(const fs::path& root) {
  const Parts includes = parts_of(root);
  std::vector<Finding> findings;
  std::set<std::string> done;
  for (const auto& [part, others] : includes) {
    std::vector<std::string> way = {part};
    const auto circle = circle_from(includes, way, done);
    if (!circle) continue;
    findings.push_back({part, 0, "these include one another: " + *circle});
    break;
  }
  return findings;
}

std::vector<Finding> check_includes(const fs::path& root) {
  return scan(root, files_under(root, is_source),
              [&](const fs::path& file, const std::string& header) {
                const auto own = own_file(root, file, header);
                return own ? fault_of_own(file.string(), own->string())
                           : fault_of_foreign(file.string(), header);
              });
}

std::vector<Finding> check_public_headers(const fs::path& root) {
  const fs::path installed = root / "client_lib/include";
  const auto is_installed = [&](const fs::path& file) {
    return is_source(file) && file.string().starts_with(installed.string() + "/");
  };
  return scan(root, files_under(root, is_installed),
              [&](const fs::path&, const std::string& header) -> std::optional<std::string> {
                if (is_platform_header(header) || fs::is_regular_file(installed / header)) {
                  return std::nullopt;
                }
                return "installed header includes " + header + ", which is not installed with it";
              });
}

}  // namespace kvd::lint
