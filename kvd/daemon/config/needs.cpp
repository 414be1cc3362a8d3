#include "kvd/daemon/config/needs.hpp"

#include <algorithm>
#include <string>

#include "kvd/core/door/kept_for_engines.hpp"

namespace kvd::daemon {
namespace {

/// Memory for kvd's threads, for tables that belong to no pool, for its sockets in the kernel, and
/// for kvd-admin.
constexpr Bytes kOwn = kMiB * 192;
/// The part of it that kvd itself uses in the end.
constexpr Bytes kOwnLater = kMiB * 96;
/// Several times the host memory that the CUDA driver takes for a context.
constexpr Bytes kDriver = kGiB * 2;
/// Measured in a control group, for a GiB of 4 KiB pages: 2.0 MiB of page tables, and 2.2 MiB of
/// the kernel's index of the pages of a file.
constexpr Bytes kPages = kKiB * 4352;
/// For a GiB of blocks of 256 KiB, where each has a record of 256 bytes for the next kvd and rows
/// in the tables of this one, and tags of blocks that were evicted (8 bytes at most).
constexpr Bytes kBlocks = kMiB * 3;

/// Waiting connections, the link to kvd-admin, logs and timers: as many descriptors as stay free
/// for attached engines (see Acceptor), and the same number again.
constexpr std::uint64_t kOtherDescriptors = 128;
/// Two sockets, a process, a bell, and pages; five were counted of an engine with a region.
constexpr std::uint64_t kEngineDescriptors = 6;

Bytes for_each_gib(Bytes cost, Bytes memory) {
  return Bytes(memory.value / kMiB.value * cost.value / (kGiB / kMiB));
}

Bytes all_pools(const Config& config) {
  return config.slab_size() *
         (std::int64_t{config.slabs(Tier::kDram)} + config.all_slabs(Tier::kHbm));
}

}  // namespace

Bytes host_pools(const Config& config) {
  const Bytes dram = config.slab_size() * std::int64_t{config.slabs(Tier::kDram)};
  return config.backend == BackendChoice::kCuda ? dram : all_pools(config);
}

Bytes page_overhead(Bytes memory) { return for_each_gib(kPages, memory); }

Bytes memory_beside(const Config& config) {
  const bool maybe_cuda = config.backend != BackendChoice::kHost;
  return kOwn + core::kKeptForEngines + page_overhead(host_pools(config)) +
         for_each_gib(kBlocks, all_pools(config)) + (maybe_cuda ? kDriver : Bytes(0));
}

Bytes memory_at_most(const Config& config) { return host_pools(config) + memory_beside(config); }

Bytes kept_free(Bytes held) {
  const Bytes all = core::kKeptForEngines + kOwnLater;
  return all - std::min(all, held);
}

std::uint64_t descriptors_needed(const Config& config) {
  const std::uint64_t slabs =
      std::uint64_t{config.slabs(Tier::kDram)} + config.all_slabs(Tier::kHbm);
  return slabs + kEngineDescriptors * config.max_engines + kOtherDescriptors;
}

Status check_descriptors(const Config& config, std::uint64_t limit) {
  const std::uint64_t needed = descriptors_needed(config);
  if (needed <= limit) return {};
  return make_error(ErrorCode::kUnavailable,
                    "kvd needs " + std::to_string(needed) + " file descriptors, and its limit is " +
                        std::to_string(limit) +
                        ": raise LimitNOFILE (ulimit -Hn), or take larger slabs (pool.slab) or "
                        "fewer engines (engine.max_engines)");
}

}  // namespace kvd::daemon
