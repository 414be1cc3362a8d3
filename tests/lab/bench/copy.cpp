// kvd-bench copy: bulk moves and scrubbing through the host backend, against bare loops over the
// same segments of the same slabs.
#include <poll.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ipc/vocabulary/clock.hpp"
#include "kernels/device/host/host_backend.hpp"
#include "tests/lab/bench/bench.hpp"
#include "tests/lab/bench/floors/nt_copy.hpp"
#include "tests/lab/bench/floors/zero_fill.hpp"

namespace kvd::bench::copy_benchmark {
namespace {

using namespace kvd::kernels;

constexpr Bytes kSlab = kMiB * 64;
// The bytes that one rotation moves at a time: many segments complete together.
constexpr Bytes kBatch = kMiB * 16;

class CopyBench {
 public:
  explicit CopyBench(std::unique_ptr<HostBackend> backend) : backend_(std::move(backend)) {}

  // Fills both tiers with `half` bytes of slabs each.
  Status fill(Bytes half) {
    for (Bytes size; size < half; size += kSlab) {
      KVD_ASSIGN_OR_RETURN(const Slab device, backend_->create_slab(Tier::kHbm, kSlab));
      KVD_ASSIGN_OR_RETURN(const Slab host, backend_->create_slab(Tier::kDram, kSlab));
      device_.push_back(device.address);
      host_.push_back(host.address);
      std::memset(reinterpret_cast<void*>(host.address), 0x5A, kSlab.size());
    }
    return {};
  }

  Row bulk(const std::string& name, Bytes segment, int repetitions) {
    const auto segments = shuffled(segment);
    return rate_row(
        name, repetitions, [&] { run(segments); },
        [&] {
          for (const CopyExtent& e : segments)
            nt_copy(pointer(e.destination), pointer(e.source), e.length.size());
        });
  }

  Row scrub(int repetitions) {
    auto segments = shuffled(kMiB);
    for (CopyExtent& segment : segments) segment.source = 0;
    return rate_row(
        "scrub", repetitions, [&] { run(segments); },
        [&] {
          for (const CopyExtent& e : segments) zero_fill(pointer(e.destination), e.length.size());
        });
  }

 private:
  static void* pointer(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

  // Every segment of the HBM half once, in random order, each from the DRAM half in another random
  // order.
  std::vector<CopyExtent> shuffled(Bytes segment) const {
    std::vector<CopyExtent> extents;
    for (std::size_t slab = 0; slab < device_.size(); ++slab) {
      for (Bytes at; at < kSlab; at += segment) {
        extents.push_back({device_[slab] + at.size(), host_[slab] + at.size(), segment});
      }
    }
    std::mt19937_64 random(1);
    std::shuffle(extents.begin(), extents.end(), random);
    for (std::size_t i = extents.size() - 1; i > 0; --i) {
      std::swap(extents[i].source, extents[random() % (i + 1)].source);
    }
    return extents;
  }

  // Submits the segments in batches and polls until all are done.
  void run(const std::vector<CopyExtent>& segments) {
    const auto batch_size = static_cast<std::size_t>(kBatch / segments.front().length);
    std::size_t batches = 0;
    for (std::size_t i = 0; i < segments.size(); i += batch_size, ++batches) {
      const auto first = segments.begin() + static_cast<std::ptrdiff_t>(i);
      const auto count = std::min(batch_size, segments.size() - i);
      const Status submitted =
          backend_->submit({Ticket(++last_ticket_),
                            Direction::kHostToDevice,
                            {first, first + static_cast<std::ptrdiff_t>(count)},
                            {}});
      KVD_CHECK(submitted.ok(), "a benchmark's batch was refused");
    }
    std::vector<Completion> completed;
    while (completed.size() < batches) {
      pollfd wait{backend_->completion_fd(), POLLIN, 0};
      ::poll(&wait, 1, -1);
      backend_->poll(completed);
    }
  }

  // Both sides in GB/s, over all of one tier.
  template <class Value, class Floor>
  Row rate_row(const std::string& name, int repetitions, Value value, Floor floor) {
    const auto bytes = static_cast<double>(device_.size() * kSlab.size());
    const auto rate = [&](auto& work) {
      const TimePoint start = clock_.now();
      work();
      return bytes / to_seconds(clock_.now() - start) / 1e9;
    };
    return interleaved(
        name, "GB/s", repetitions, [&] { return rate(value); }, [&] { return rate(floor); });
  }

  SteadyClock clock_;
  std::unique_ptr<HostBackend> backend_;
  std::vector<std::uintptr_t> device_, host_;
  std::uint64_t last_ticket_ = 0;
};

int fail(const Error& error) {
  std::fprintf(stderr, "kvd-bench copy: %s\n", error.to_string().c_str());
  return 1;
}

int run(const Arguments& arguments) {
  const auto repetitions = static_cast<int>(std::max(1.0, arguments.number("--repetitions", 21)));
  const auto mib = static_cast<std::int64_t>(arguments.number("--mib", 512));
  const SteadyClock clock;
  auto backend = HostBackend::create({}, clock);
  if (!backend.ok()) return fail(backend.error());
  CopyBench bench(std::move(backend).value());
  if (const Status filled = bench.fill(kMiB * (std::max<std::int64_t>(mib, 2) / 2)); !filled.ok()) {
    return fail(filled.error());
  }
  return print_rows(
      {bench.bulk("bulk_64k", kKiB * 64, repetitions),
       bench.bulk("bulk_256k", kKiB * 256, repetitions), bench.bulk("bulk_1m", kMiB, repetitions),
       bench.bulk("bulk_4m", kMiB * 4, repetitions), bench.scrub(repetitions)},
      arguments.json);
}

const Registration registration{
    {"copy", "bulk moves and scrubbing [--repetitions N] [--mib pool size of both tiers]", run}};

}  // namespace
}  // namespace kvd::bench::copy_benchmark
