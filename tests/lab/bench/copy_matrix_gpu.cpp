// The GPU's half of kvd-bench copy --matrix.
#include <cstdio>

#include "tests/gpu/copy_arena.hpp"
#include "tests/gpu/lab.hpp"
#include "tests/lab/bench/copy_table.hpp"

namespace kvd::bench {
namespace {

using gpu::CopyArena;
using gpu::Method;
using kernels::Direction;

/// With a fake driver the sizes are small, since it only shows that this works.
struct Sizes {
  Bytes half, largest;
  std::uint32_t most;
  double budget_s;
};
Sizes sizes() {
  if (gpu::driver_is_fake()) return {kMiB * 4, kKiB * 64, 64, 0.001};
  return {kMiB * 512, kMiB * 8, 16384, 0.02};
}

Result<double> rate(CopyArena& arena, const std::string& direction, Method method, Bytes segment,
                    std::uint32_t count) {
  const double budget = sizes().budget_s;
  if (direction == "duplex") return arena.duplex_rate(method, segment, count, budget);
  return arena.rate(method,
                    direction == "h2d" ? Direction::kHostToDevice : Direction::kDeviceToHost,
                    segment, count, budget);
}

Result<CopyCell> measure(CopyArena& arena, const std::string& direction, Bytes segment,
                         std::uint32_t count) {
  CopyCell cell{direction, count, segment, 0, 0, 0};
  KVD_ASSIGN_OR_RETURN(cell.engine, rate(arena, direction, Method::kBatch, segment, count));
  KVD_ASSIGN_OR_RETURN(cell.loop, rate(arena, direction, Method::kLoop, segment, count));
  KVD_ASSIGN_OR_RETURN(cell.kernels, rate(arena, direction, Method::kKernel, segment, count));
  return cell;
}

Result<std::vector<CopyCell>> measure_all(const gpu::Gpu& gpu) {
  const Sizes all = sizes();
  KVD_ASSIGN_OR_RETURN(const auto arena, CopyArena::make(gpu, all.half));
  std::vector<CopyCell> cells;
  for (const char* direction : {"h2d", "d2h", "duplex"}) {
    for (std::uint32_t count = 16; count <= all.most; count *= 4) {
      for (Bytes segment = kKiB * 4; segment <= all.largest && segment * count <= all.half;
           segment = segment * 2) {
        KVD_ASSIGN_OR_RETURN(CopyCell cell, measure(*arena, direction, segment, count));
        cells.push_back(std::move(cell));
      }
    }
  }
  return cells;
}

}  // namespace

std::vector<CopyCell> measure_gpu(CopyOrigin& origin) {
  const auto driver = gpu::cuda::Driver::load();
  if (!driver.ok()) {
    std::fprintf(stderr, "kvd-bench copy: %s\n", driver.error().message.c_str());
    return {};
  }
  origin.source = "cuda";
  const auto gpu = gpu::Gpu::open();
  const Result<std::vector<CopyCell>> cells =
      gpu.ok() ? measure_all(**gpu) : Result<std::vector<CopyCell>>(gpu.error());
  if (!cells.ok()) {
    std::fprintf(stderr, "kvd-bench copy: %s\n", cells.error().to_string().c_str());
    return {};
  }
  origin.device = (*gpu)->device().name;
  origin.uuid = (*gpu)->device().uuid_text();
  origin.driver = (*driver)->version();
  return *cells;
}

}  // namespace kvd::bench
