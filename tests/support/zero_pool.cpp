/// kvd-zero-pool --pid P: wipes the kvd memory of a running engine from outside, once.
///
/// The corruption control of the engine tests and of the demo: an engine whose KV cache was zeroed
/// half-way must fail the comparison that an untouched one passes. If it does not, the comparison
/// proves nothing, or the KV cache is not where we think it is. Have the engine stand still
/// meanwhile. Prints {"zeroed_bytes":N}; exit 1 where there was nothing to wipe or the kernel
/// refused.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "ipc/vocabulary/unique_fd.hpp"

namespace {

struct Range {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// The writable mapping in a line of /proc/PID/maps, where it is a slab of the HBM tier. Other
/// memfds of kvd carry fences and heartbeats and must stay as they are.
std::optional<Range> parse_pool_mapping(const std::string& line) {
  if (line.find("/memfd:kvd-hbm") == std::string::npos) return std::nullopt;
  Range range;
  char flags[5] = "";
  if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %4s", &range.begin, &range.end, flags) !=
      3) {
    return std::nullopt;
  }
  if (flags[1] != 'w') return std::nullopt;
  return range;
}

bool zero(int memory, const Range& range) {
  static const std::vector<char> zeros(std::size_t{1} << 20U);
  for (std::uint64_t at = range.begin; at < range.end;) {
    const std::uint64_t left = range.end - at;
    const std::size_t chunk = left < zeros.size() ? left : zeros.size();
    const ssize_t written = pwrite(memory, zeros.data(), chunk, static_cast<off_t>(at));
    if (written <= 0) return false;
    at += static_cast<std::uint64_t>(written);
  }
  return true;
}

int zero_pool_of(const std::string& process) {
  const kvd::UniqueFd memory(open((process + "/mem").c_str(), O_WRONLY | O_CLOEXEC));
  std::ifstream maps(process + "/maps");
  std::uint64_t zeroed = 0;
  for (std::string line; std::getline(maps, line);) {
    const auto range = parse_pool_mapping(line);
    if (!range) continue;
    if (!zero(memory.get(), *range)) {
      std::fprintf(stderr, "kvd-zero-pool: cannot write to %s/mem: %s\n", process.c_str(),
                   std::strerror(errno));
      return 1;
    }
    zeroed += range->end - range->begin;
  }
  std::printf("{\"zeroed_bytes\":%" PRIu64 "}\n", zeroed);
  return zeroed > 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  int pid = 0;
  if (argc == 3 && std::strcmp(argv[1], "--pid") == 0) {
    std::from_chars(argv[2], argv[2] + std::strlen(argv[2]), pid);
  }
  if (pid <= 0) {
    std::fputs("usage: kvd-zero-pool --pid PID\n", stderr);
    return 2;
  }
  return zero_pool_of("/proc/" + std::to_string(pid));
}
