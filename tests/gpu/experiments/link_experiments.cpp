// X1, X3 to X8: what would keep the link busier, asked before it is built.
#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>

#include "tests/gpu/copy_arena.hpp"
#include "tests/gpu/experiments/experiments.hpp"
#include "tests/gpu/lane.hpp"
#include "tests/gpu/peers/peer.hpp"
#include "tests/gpu/peers/traffic.hpp"

namespace kvd::gpu {
namespace {

constexpr Bytes kPiece = kKiB * 64;  // a block of a layer of an 8B model
constexpr Bytes kCopy = kKiB * 256;  // of an engine, that waits for a burst

std::function<bool()> after(double seconds) {
  return [end = now_s() + seconds] { return now_s() >= end; };
}

/// Pieces that the link moves in so many microseconds, at 50 GB/s a direction.
std::size_t pieces_in(Bytes piece, std::int64_t microseconds) {
  return static_cast<std::size_t>(std::max<std::int64_t>(1, microseconds * 50'000 / piece.value));
}

/// Both directions, each in a lane.
struct Duplex {
  std::unique_ptr<Lane> in, out;
  [[nodiscard]] std::vector<Lane*> lanes() const { return {in.get(), out.get()}; }
};
Result<Duplex> duplex(const Gpu& gpu, const PinnedMemory& page, LaneShape shape) {
  Duplex both;
  shape.direction = Direction::kHostToDevice;
  KVD_ASSIGN_OR_RETURN(both.in, Lane::make(gpu, page, 0, shape));
  shape.direction = Direction::kDeviceToHost;
  KVD_ASSIGN_OR_RETURN(both.out, Lane::make(gpu, page, 1, shape));
  return both;
}

Result<double> duplex_rate(const Lab& lab, const Gpu& gpu, const PinnedMemory& page,
                           const LaneShape& shape) {
  KVD_ASSIGN_OR_RETURN(const Duplex both, duplex(gpu, page, shape));
  return run_lanes(both.lanes(), after(lab.quick ? 0.01 : 0.4));
}

/// The most that the link does both ways.
Result<double> duplex_limit(const Lab& lab, const Gpu& gpu, const PinnedMemory& page) {
  return duplex_rate(lab, gpu, page, {{}, lab.quick ? kKiB * 256 : kMiB * 8, 4, false});
}

std::string small_copies(const Lab& lab, Bytes size) {
  return "small " + std::to_string(lab.quick ? 20 : 300) + " " + std::to_string(size.value);
}

/// p99 of an engine's copies of that size while the lanes run, in us; the lanes' rate.
struct Beside {
  double p99 = 0, rate = 0;
};
Result<Beside> beside(const Lab& lab, const Peer& engine, const Duplex& both, Bytes size) {
  KVD_TRY(engine.tell(small_copies(lab, size)));
  Beside found;
  KVD_ASSIGN_OR_RETURN(found.rate, run_lanes(both.lanes(), [&] { return engine.answered(); }));
  KVD_ASSIGN_OR_RETURN(const Reply reply, engine.reply());
  KVD_ASSIGN_OR_RETURN(found.p99, reply.number(1));
  return found;
}

/// Copies in random order against the order of their addresses, GB/s to the device.
Status orders(const Lab& lab, const Gpu& gpu, kernels::PagePreference pages) {
  const Bytes size = lab.quick ? kMiB * 4 : kGiB;
  kernels::HostMemoryRequest request;
  request.name = "kvd-gpu-report";
  request.size = size;
  request.pages = pages;
  request.populate_threads = kernels::populate_threads(0);
  KVD_ASSIGN_OR_RETURN(const auto memory, kernels::HostMemory::create(request));
  const bool small = memory.pages() == kernels::PageKind::kSmall;
  if (pages == kernels::PagePreference::kHugetlb && small) {
    lab.out.note("no huge pages are reserved here (/proc/sys/vm/nr_hugepages)");
    return {};
  }
  KVD_ASSIGN_OR_RETURN(const auto pinned,
                       cuda::ChunkedRegistration::make(gpu.driver(), memory.address(), size));
  KVD_ASSIGN_OR_RETURN(const GpuSlab device, GpuSlab::make(gpu, size));
  for (const bool shuffled : {false, true}) {
    std::vector<std::size_t> order(static_cast<std::size_t>(size / kPiece) / 2);
    std::iota(order.begin(), order.end(), std::size_t{0});
    if (shuffled) std::shuffle(order.begin(), order.end(), std::mt19937(5));
    kernels::cuda::CopyList list;
    for (std::size_t i = 0; i < std::min<std::size_t>(order.size(), 4096); ++i) {
      list.from.push_back(memory.address() + order[i] * 2 * kPiece.size());
      list.to.push_back(device.address() + i * kPiece.size());
      list.lengths.push_back(kPiece.size());
      list.bytes += kPiece;
    }
    double best = 0;
    for (int round = 0; round < 5; ++round) {
      const double start = now_s();
      KVD_TRY(gpu.check(gpu.stream().copy(list), "a batch of copies"));
      KVD_TRY(gpu.finish());
      best = std::max(best, static_cast<double>(list.bytes.value) / (now_s() - start));
    }
    lab.out.figure(std::string(small ? "pages of 4 KiB" : "huge pages") +
                       (shuffled ? ", random order" : ", ascending"),
                   best / 1e9, "GB/s");
  }
  return {};
}

/// Batches of 2 MiB from two streams in turn.
Result<double> two_streams(const Lab& lab, const Gpu& gpu, const PinnedMemory& page, bool ordered) {
  const LaneShape shape{Direction::kHostToDevice, kPiece, lab.quick ? 4u : 32u, false};
  KVD_ASSIGN_OR_RETURN(const auto left, Lane::make(gpu, page, 0, shape));
  KVD_ASSIGN_OR_RETURN(const auto right, Lane::make(gpu, page, 1, shape));
  if (ordered) {
    left->follow(*right);
    right->follow(*left);
  }
  return run_lanes({left.get(), right.get()}, after(lab.quick ? 0.01 : 0.5));
}

/// A block of layers `pitch` apart as one strided copy, GB/s.
Result<double> strided(const Lab& lab, const Gpu& gpu, Direction direction, const GpuSlab& device,
                       Bytes pitch, std::size_t layers) {
  const std::size_t blocks = lab.quick ? 2 : 256;
  const Bytes block(kPiece.value * static_cast<std::int64_t>(layers));
  KVD_ASSIGN_OR_RETURN(const PinnedMemory host,
                       PinnedMemory::make(gpu, block * static_cast<std::int64_t>(blocks)));
  const bool in = direction == Direction::kHostToDevice;
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    const double start = now_s();
    for (std::size_t i = 0; i < blocks; ++i) {
      CUDA_MEMCPY2D copy{};
      copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
      const CUdeviceptr near = device.address() + i * kPiece.size();
      const CUdeviceptr far = host.address() + i * block.size();
      copy.srcDevice = in ? far : near;
      copy.dstDevice = in ? near : far;
      copy.srcPitch = in ? kPiece.size() : pitch.size();
      copy.dstPitch = in ? pitch.size() : kPiece.size();
      copy.WidthInBytes = kPiece.size();
      copy.Height = layers;
      KVD_TRY(gpu.check(gpu.driver().memcpy_2d_async(&copy, gpu.stream().get()), "a strided copy"));
    }
    KVD_TRY(gpu.finish());
    best = std::max(
        best, static_cast<double>(block.value) * static_cast<double>(blocks) / (now_s() - start));
  }
  return best;
}

}  // namespace

Status streams_as_they_are(const Lab& lab) {
  KVD_ASSIGN_OR_RETURN(const auto gpu, Gpu::open());
  KVD_ASSIGN_OR_RETURN(const PinnedMemory page, PinnedMemory::make(*gpu, Bytes(4096)));
  KVD_ASSIGN_OR_RETURN(const double limit, duplex_limit(lab, *gpu, page));
  lab.out.figure("duplex limit of the link", limit / 1e9, "GB/s");
  KVD_ASSIGN_OR_RETURN(const auto traffic, Traffic::make(lab.quick ? kMiB * 8 : kMiB * 256));
  KVD_ASSIGN_OR_RETURN(const auto rates,
                       traffic->run(true, true, kPiece, after(lab.quick ? 0.02 : 1)));
  lab.out.at_least("rotation of 64 KiB pieces over the limit", (rates.h2d + rates.d2h) / limit, "",
                   0.78);
  return {};
}

Status gate_between_bursts(const Lab& lab) {
  KVD_ASSIGN_OR_RETURN(const auto gpu, Gpu::open());
  KVD_ASSIGN_OR_RETURN(const PinnedMemory page, PinnedMemory::make(*gpu, Bytes(4096)));
  KVD_ASSIGN_OR_RETURN(const Peer engine, Peer::start());
  KVD_ASSIGN_OR_RETURN(const double limit, duplex_limit(lab, *gpu, page));
  for (const int time : {100, 200}) {
    for (const bool gated : {true, false}) {
      const LaneShape shape{{}, kPiece, lab.quick ? 4 : pieces_in(kPiece, time), gated};
      KVD_ASSIGN_OR_RETURN(const Duplex both, duplex(*gpu, page, shape));
      KVD_ASSIGN_OR_RETURN(const Beside found, beside(lab, engine, both, kCopy));
      KVD_ASSIGN_OR_RETURN(const double alone, duplex_rate(lab, *gpu, page, shape));
      const std::string what =
          std::string(gated ? "gated" : "in a row") + ", bursts of " + std::to_string(time) + " us";
      const bool judged = gated && time == 100;
      lab.out.figure(what + ": rate", alone / 1e9, "GB/s");
      if (judged) {
        lab.out.at_least(what + ": over the limit", alone / limit, "", 0.95);
        lab.out.at_most(what + ": p99 of a copy of 256 KiB", found.p99, "us", 110);
      } else {
        lab.out.figure(what + ": over the limit", alone / limit, "");
        lab.out.figure(what + ": p99 of a copy of 256 KiB", found.p99, "us");
      }
    }
  }
  return {};
}

Status sizes_that_wait(const Lab& lab) {
  KVD_ASSIGN_OR_RETURN(const auto gpu, Gpu::open());
  KVD_ASSIGN_OR_RETURN(const PinnedMemory page, PinnedMemory::make(*gpu, Bytes(4096)));
  KVD_ASSIGN_OR_RETURN(const Peer engine, Peer::start());
  const LaneShape shape{{}, kPiece, lab.quick ? 4 : pieces_in(kPiece, 320), false};
  double threshold = 0;
  for (const std::int64_t kib : {4, 16, 32, 64, 128, 256}) {
    if (lab.quick && kib > 16) continue;
    KVD_ASSIGN_OR_RETURN(const Duplex both, duplex(*gpu, page, shape));
    KVD_ASSIGN_OR_RETURN(const Beside found, beside(lab, engine, both, kKiB * kib));
    lab.out.figure("beside bursts in a row: p99 of a copy of " + std::to_string(kib) + " KiB",
                   found.p99, "us");
    if (threshold == 0 && found.p99 > 500) threshold = static_cast<double>(kib);
  }
  lab.out.figure("smallest copy that waits for a time slice (0: none)", threshold, "KiB");
  return {};
}

Status pages_and_order(const Lab& lab) {
  KVD_ASSIGN_OR_RETURN(const auto gpu, Gpu::open());
  KVD_TRY(orders(lab, *gpu, kernels::PagePreference::kSmall));
  return orders(lab, *gpu, kernels::PagePreference::kHugetlb);
}

Status small_batches(const Lab& lab) {
  KVD_ASSIGN_OR_RETURN(const auto gpu, Gpu::open());
  KVD_ASSIGN_OR_RETURN(const PinnedMemory page, PinnedMemory::make(*gpu, Bytes(4096)));
  KVD_ASSIGN_OR_RETURN(const double ordered, two_streams(lab, *gpu, page, true));
  KVD_ASSIGN_OR_RETURN(const double apart, two_streams(lab, *gpu, page, false));
  lab.out.figure("batches of 2 MiB, each after the one before", ordered / 1e9, "GB/s");
  lab.out.figure("the same without an order", apart / 1e9, "GB/s");
  lab.out.at_least("without an order over with one", apart / ordered, "", 1.5);
  return {};
}

Status strided_blocks(const Lab& lab) {
  KVD_ASSIGN_OR_RETURN(const auto gpu, Gpu::open());
  const std::size_t layers = lab.quick ? 2 : 8;
  const Bytes pitch = lab.quick ? gpu->grain() : kMiB * 1946;  // 1.9 GiB
  KVD_ASSIGN_OR_RETURN(const GpuSlab device,
                       GpuSlab::make(*gpu, pitch * static_cast<std::int64_t>(layers)));
  for (const Direction direction : {Direction::kHostToDevice, Direction::kDeviceToHost}) {
    KVD_ASSIGN_OR_RETURN(const double rate, strided(lab, *gpu, direction, device, pitch, layers));
    lab.out.at_least(std::string(kernels::name(direction)) + ", one strided copy a block",
                     rate / 1e9, "GB/s", 52);
  }
  return {};
}

Status full_rate(const Lab& lab) {
  KVD_ASSIGN_OR_RETURN(const auto traffic, Traffic::make(lab.quick ? kMiB * 8 : kMiB * 256));
  std::puts("X8 copies");  // whoever measures beside them begins now
  std::fflush(stdout);
  KVD_ASSIGN_OR_RETURN(const auto rates,
                       traffic->run(true, true, kPiece, after(lab.quick ? 0.02 : 15)));
  lab.out.figure("kvd's copies both ways", (rates.h2d + rates.d2h) / 1e9, "GB/s");
  return {};
}

}  // namespace kvd::gpu
