// kvd-bench rotate: requests leave HBM while others come in, moved by the mover, against two
// threads that only copy. The rungs below full duplex are SuperInfer's ladder (sec. 5).
#include <poll.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "ipc/vocabulary/clock.hpp"
#include "kernels/device/host/host_backend.hpp"
#include "kvd/mover/mover.hpp"
#include "kvd/mover/runs.hpp"
#include "tests/lab/bench/bench.hpp"
#include "tests/lab/bench/floors/duplex_copy.hpp"

namespace kvd::bench::rotate_benchmark {
namespace {

using kernels::CopyExtent;
using kernels::Direction;
using Pairs = std::vector<core::CopySlots::Pair>;

constexpr Bytes kSlab = kMiB * 64;
constexpr Bytes kSlot = kKiB * 64;
constexpr std::uint32_t kSlotsASlab = 1024;
/// Slots stand side by side, as allocation leaves them: in runs of 1 MiB.
constexpr std::uint32_t kRun = 16;
/// The slots that one request holds.
constexpr std::size_t kSlotsARequest = 256;

/// Half of the slabs of each tier come in, the other half leave.
class RotateBench {
 public:
  RotateBench(std::unique_ptr<kernels::HostBackend> backend, mover::SlabStore slabs,
              std::uint32_t count)
      : backend_(std::move(backend)), slabs_(std::move(slabs)), mover_(*backend_, slabs_) {
    for (std::uint32_t slab = 0; slab < count; ++slab) {
      for (const Tier tier : {Tier::kHbm, Tier::kDram}) {
        std::memset(reinterpret_cast<void*>(slabs_.address(tier, SlabIndex(slab))), 0x5A,
                    kSlab.size());
      }
    }
    in_ = shuffled(0, count / 2);
    out_ = shuffled(count / 2, count);
    ideal_in_ = mover::runs_of(slabs_, in_, kSlot, true);
    ideal_out_ = mover::runs_of(slabs_, out_, kSlot, false);
  }

  std::vector<Row> rows(int repetitions) {
    const auto slots = [this](Direction d) { return extents(d, false); };
    const auto runs = [this](Direction d) { return extents(d, true); };
    return {
        row("one_by_one", repetitions, [&] { one_way(slots); }),
        row("merged", repetitions, [&] { one_way(runs); }),
        row("batched", repetitions,
            [this] {
              rotate(true, false);
              rotate(false, true);
            }),
        row("duplex", repetitions, [this] { rotate(true, true); }),
    };
  }

 private:
  /// All slots of the slabs, run by run in random order, each into the same run of another place.
  static Pairs shuffled(std::uint32_t first, std::uint32_t last) {
    std::vector<SlotId> runs;
    for (std::uint32_t slab = first; slab < last; ++slab) {
      for (std::uint32_t i = 0; i < kSlotsASlab; i += kRun) {
        runs.emplace_back(SlabIndex(slab), i);
      }
    }
    std::vector<SlotId> others = runs;
    std::mt19937_64 random(1);
    std::shuffle(runs.begin(), runs.end(), random);
    std::shuffle(others.begin(), others.end(), random);
    Pairs pairs;
    for (std::size_t run = 0; run < runs.size(); ++run) {
      for (std::uint32_t i = 0; i < kRun; ++i) {
        pairs.push_back({SlotId(runs[run].slab(), runs[run].index() + i),
                         SlotId(others[run].slab(), others[run].index() + i)});
      }
    }
    return pairs;
  }

  [[nodiscard]] std::vector<CopyExtent> extents(Direction direction, bool merged) const {
    const bool in = direction == Direction::kHostToDevice;
    if (merged) return in ? ideal_in_ : ideal_out_;
    std::vector<CopyExtent> out;
    for (const auto& pair : in ? in_ : out_) {
      out.push_back(mover::runs_of(slabs_, std::span(&pair, 1), kSlot, in).front());
    }
    return out;
  }

  void submit(Direction direction, const CopyExtent& extent) {
    const Status ok = backend_->submit({Ticket(++last_ticket_), direction, {extent}, {}});
    KVD_CHECK(ok.ok(), "a benchmark's batch was refused");
  }

  /// One direction after the other, with every extent as a batch of its own.
  template <class Extents>
  void one_way(Extents extents_of) {
    for (const Direction direction : {Direction::kHostToDevice, Direction::kDeviceToHost}) {
      const auto all = extents_of(direction);
      for (const CopyExtent& extent : all) submit(direction, extent);
      std::vector<kernels::Completion> done;
      while (done.size() < all.size()) {
        wait();
        backend_->poll(done);
      }
    }
  }

  /// Moves requests by the mover, as the daemon rotates them.
  void rotate(bool in, bool out) {
    std::size_t copies = 0;
    for (std::size_t i = 0; i < in_.size(); i += kSlotsARequest) {
      if (in) copies += copy(in_, i, true);
      if (out) copies += copy(out_, i, false);
    }
    std::vector<core::CopyFinished> done;
    while (done.size() < copies) {
      wait();
      mover_.poll(done);
    }
  }

  std::size_t copy(const Pairs& pairs, std::size_t first, bool to_hbm) {
    const auto begin = pairs.begin() + static_cast<std::ptrdiff_t>(first);
    const auto end = begin + static_cast<std::ptrdiff_t>(kSlotsARequest);
    mover_.copy({Ticket(++last_ticket_), EngineId(1), to_hbm, kSlot, {begin, end}}, nullptr);
    return 1;
  }

  void wait() const {
    pollfd ready{backend_->completion_fd(), POLLIN, 0};
    ::poll(&ready, 1, -1);
  }

  /// GB/s of both directions together.
  template <class Value>
  Row row(const std::string& name, int repetitions, Value value) {
    const auto bytes = static_cast<double>((in_.size() + out_.size()) * kSlot.size());
    const auto rate = [&](auto work) {
      const TimePoint start = clock_.now();
      work();
      return bytes / to_seconds(clock_.now() - start) / 1e9;
    };
    return interleaved(
        name, "GB/s", repetitions, [&] { return rate(value); },
        [&] {
          DuplexCopy ideal(ideal_in_, ideal_out_);
          return rate([&] { ideal.run(); });
        });
  }

  SteadyClock clock_;
  std::unique_ptr<kernels::HostBackend> backend_;
  mover::SlabStore slabs_;
  mover::Mover mover_;
  Pairs in_, out_;
  std::vector<CopyExtent> ideal_in_, ideal_out_;
  std::uint64_t last_ticket_ = 0;
};

int fail(const Error& error) {
  std::fprintf(stderr, "kvd-bench rotate: %s\n", error.to_string().c_str());
  return 1;
}

int run(const Arguments& arguments) {
  const auto repetitions = static_cast<int>(std::max(1.0, arguments.number("--repetitions", 15)));
  const double mib = std::max(256.0, arguments.number("--mib", 512));
  const auto slabs = static_cast<std::uint32_t>(mib / 256) * 2;  // for each tier
  const SteadyClock clock;
  auto backend = kernels::HostBackend::create({}, clock);
  if (!backend.ok()) return fail(backend.error());
  auto store = mover::SlabStore::create(**backend, {kSlab, slabs}, {kSlab, slabs}, {});
  if (!store.ok()) return fail(store.error());
  RotateBench bench(std::move(*backend), std::move(*store), slabs);
  return print_rows(bench.rows(repetitions), arguments.json);
}

const Registration registration{
    {"rotate",
     "SuperInfer's ladder to full duplex, against two threads that only copy\n             "
     "[--repetitions N] [--mib of both tiers]",
     run}};

}  // namespace
}  // namespace kvd::bench::rotate_benchmark
