// kvd-bench copy --matrix: see copy_matrix.hpp.
#include "tests/lab/bench/copy_matrix.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <numeric>
#include <random>

#include "tests/lab/bench/copy_table.hpp"
#include "tests/lab/bench/floors/nt_copy.hpp"

namespace kvd::bench {
namespace {

constexpr Bytes kArena = kMiB * 256;
constexpr int kRounds = 5;

/// Memory that is zeroed and present.
class Arena {
 public:
  Arena()
      : at_(::mmap(nullptr, kArena.size(), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0)) {}
  ~Arena() {
    if (ok()) ::munmap(at_, kArena.size());
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  [[nodiscard]] bool ok() const { return at_ != MAP_FAILED; }
  [[nodiscard]] std::byte* at(std::size_t offset) const {
    return static_cast<std::byte*>(at_) + offset;
  }

 private:
  void* at_;
};

template <class Copy>
double host_rate(const Arena& to, const Arena& from, Bytes segment, std::uint32_t count,
                 Copy copy) {
  std::vector<std::size_t> order(static_cast<std::size_t>(kArena / segment));
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::shuffle(order.begin(), order.end(), std::mt19937(1));
  std::vector<double> seconds;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (std::uint32_t i = 0; i < count; ++i) {
      copy(to.at(order[i] * segment.size()), from.at(order[count - 1 - i] * segment.size()),
           segment.size());
    }
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return static_cast<double>((segment * count).value) / median(std::move(seconds));
}

std::vector<CopyCell> measure_host(CopyOrigin& origin) {
  origin = {"host", "memcpy and non-temporal stores", "", 0};
  const Arena to, from;
  std::vector<CopyCell> cells;
  if (!to.ok() || !from.ok()) {
    std::fprintf(stderr, "kvd-bench copy: no memory for two arenas of 256 MiB\n");
    return cells;
  }
  for (std::uint32_t count = 16; count <= 16384; count *= 4) {
    for (Bytes segment = kKiB * 4; segment <= kMiB * 8 && segment * count <= kArena;
         segment = segment * 2) {
      CopyCell cell{"host", count, segment, 0, 0, 0};
      cell.engine = host_rate(to, from, segment, count, nt_copy);
      cell.kernels = host_rate(to, from, segment, count,
                               [](void* t, const void* f, std::size_t n) { std::memcpy(t, f, n); });
      cells.push_back(cell);
    }
  }
  return cells;
}

void print_cells(const CopyOrigin& origin, const std::vector<CopyCell>& cells) {
  const bool host = origin.source == "host";
  std::printf("%s %s (GB/s)\n", origin.source.c_str(), origin.device.c_str());
  std::printf("%-8s %6s %10s %10s %10s %10s\n", "", "count", "segment", host ? "nt" : "batch",
              "loop", host ? "memcpy" : "kernel");
  for (const CopyCell& c : cells) {
    std::printf("%-8s %6u %10lld %10.3f %10.3f %10.3f\n", c.direction.c_str(), c.count,
                static_cast<long long>(c.segment.value), c.engine / 1e9, c.loop / 1e9,
                c.kernels / 1e9);
  }
}

std::string text_after(const Arguments& arguments, std::string_view flag) {
  const auto at = std::find(arguments.rest.begin(), arguments.rest.end(), flag);
  return at == arguments.rest.end() || at + 1 == arguments.rest.end() ? "" : *(at + 1);
}

}  // namespace

#ifndef KVD_HAVE_COPY_ARENA
std::vector<CopyCell> measure_gpu(CopyOrigin&) {
  std::fprintf(stderr, "kvd-bench copy: built without the CUDA parts\n");
  return {};
}
#endif

int run_copy_matrix(const Arguments& arguments) {
  CopyOrigin origin;
  std::vector<CopyCell> cells = measure_gpu(origin);
  if (cells.empty()) {
    // A driver that exists but fails in the middle is no reason to measure something else.
    if (!origin.source.empty()) return 1;
    std::fprintf(stderr, "kvd-bench copy: measuring the host's own copies instead\n");
    cells = measure_host(origin);
  }
  if (cells.empty()) return 1;
  print_cells(origin, cells);
  const std::string table = to_toml(origin, crossovers(cells));
  const std::string file = text_after(arguments, "--out");
  if (file.empty()) {
    std::printf("\n%s", table.c_str());
    return 0;
  }
  std::ofstream out(file);
  out << table;
  out.close();
  if (out.good()) return 0;
  std::fprintf(stderr, "kvd-bench copy: cannot write %s\n", file.c_str());
  return 1;
}

}  // namespace kvd::bench
