// E21: batched copies: what the overlap flag does, what a copy costs the CPU, and whether many
// scattered batches go well.
#include <algorithm>
#include <atomic>
#include <numeric>
#include <random>
#include <thread>

#include "tests/gpu/experiments/experiments.hpp"
#include "tests/gpu/lab.hpp"

namespace kvd::gpu {
namespace {

using kernels::cuda::CopyList;

constexpr std::uint64_t kSalt = 21;

CUresult batch(const Gpu& gpu, CopyList& list, bool overlap, const cuda::Stream& stream) {
  CUmemcpyAttributes all{};
  all.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  all.flags = overlap ? CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE : CU_MEMCPY_FLAG_DEFAULT;
  std::size_t first = 0;
  return gpu.driver().memcpy_batch_async(list.to.data(), list.from.data(), list.lengths.data(),
                                         list.lengths.size(), &all, &first, 1, stream.get());
}

/// `count` pieces of the range in an order of their own, each to the same place at the device.
CopyList scattered(const PinnedMemory& host, const GpuSlab& device, Bytes piece, std::size_t count,
                   std::mt19937& random) {
  std::vector<std::size_t> order(static_cast<std::size_t>(host.size() / piece));
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::shuffle(order.begin(), order.end(), random);
  order.resize(std::min(order.size(), count));
  CopyList list;
  for (const std::size_t i : order) {
    list.from.push_back(host.address() + i * piece.size());
    list.to.push_back(device.address() + i * piece.size());
    list.lengths.push_back(piece.size());
    list.bytes += piece;
  }
  return list;
}

/// Queues the list again and again and says what that takes.
Status time_batches(const Lab& lab, const Gpu& gpu, CopyList& list, Bytes piece, bool overlap) {
  std::vector<double> queueing, all;
  for (int round = 0; round < (lab.quick ? 2 : 20); ++round) {
    const double start = now_s();
    KVD_TRY(gpu.check(batch(gpu, list, overlap, gpu.stream()), "a batch of copies"));
    queueing.push_back(now_s() - start);
    KVD_TRY(gpu.finish());
    all.push_back(now_s() - start);
  }
  const auto count = static_cast<double>(list.lengths.size());
  const std::string what = std::to_string(piece.value / 1024) + " KiB, overlap " +
                           (overlap ? "preferred" : "not asked for");
  lab.out.figure("queueing a copy, " + what, percentile(queueing, 0.5) * 1e6 / count, "us");
  lab.out.figure("rate, " + what,
                 count * static_cast<double>(piece.value) / percentile(all, 0.5) / 1e9, "GB/s");
  return {};
}

Status flag(const Lab& lab, const Gpu& gpu, const PinnedMemory& host, const GpuSlab& device) {
  std::mt19937 random(1);
  for (const Bytes piece : {kKiB * 16, kKiB * 64, kKiB * 256, kMiB * 4}) {
    if (host.size() < piece) continue;
    for (const bool overlap : {true, false}) {
      CopyList list = scattered(host, device, piece, 4096, random);
      KVD_TRY(time_batches(lab, gpu, list, piece, overlap));
    }
  }
  return {};
}

/// Bytes a second that the lists move, each again and again in a stream and a thread of its own.
Result<double> rate_of_streams(const Gpu& gpu, std::vector<CopyList>& lists, double seconds) {
  std::vector<cuda::Stream> streams;
  while (streams.size() < lists.size()) {
    KVD_ASSIGN_OR_RETURN(cuda::Stream stream, cuda::Stream::create(gpu.driver()));
    streams.push_back(std::move(stream));
  }
  std::atomic<std::int64_t> copied{0};
  std::atomic<bool> failed{false};
  const double start = now_s();
  const auto work = [&](CopyList& list, const cuda::Stream& stream) {
    gpu.driver().ctx_set_current(gpu.context().get());
    while (now_s() < start + seconds && !failed) {
      failed = batch(gpu, list, true, stream) != CUDA_SUCCESS || !gpu.finish(stream.get()).ok();
      copied += list.bytes.value;
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(lists.size());
  for (std::size_t i = 0; i < lists.size(); ++i) {
    threads.emplace_back([&work, &list = lists[i], &stream = streams[i]] { work(list, stream); });
  }
  for (std::thread& thread : threads) thread.join();
  if (failed) return make_error(ErrorCode::kDeviceError, "a batch of copies failed");
  return static_cast<double>(copied) / (now_s() - start);
}

/// Whether small copies get faster where several streams of one direction share them.
Status several_streams(const Lab& lab, const Gpu& gpu, const PinnedMemory& host,
                       const GpuSlab& device, Bytes piece, bool out) {
  constexpr std::size_t kPieces = 1024;  // a stream and round
  std::mt19937 random(3);
  for (const std::size_t streams : {1u, 2u, 4u}) {
    std::vector<CopyList> lists;
    while (lists.size() < streams) {
      lists.push_back(scattered(host, device, piece, kPieces, random));
      if (out) std::swap(lists.back().to, lists.back().from);
    }
    KVD_ASSIGN_OR_RETURN(const double rate, rate_of_streams(gpu, lists, lab.quick ? 0.01 : 0.3));
    lab.out.figure(std::string(out ? "d2h" : "h2d") + ", " + std::to_string(piece.value / 1024) +
                       " KiB over " + std::to_string(streams) + " streams",
                   rate / 1e9, "GB/s");
  }
  return {};
}

/// 100,000 batches of 64 to 1024 pieces of 4 KiB, or as many as 6 s hold, 32 queued at a time.
Status endurance(const Lab& lab, const Gpu& gpu, const PinnedMemory& host, const GpuSlab& device) {
  std::mt19937 random(2);
  constexpr std::size_t kQueued = 32;
  std::vector<CopyList> lists;
  lists.reserve(kQueued);
  while (lists.size() < kQueued) {
    lists.push_back(scattered(host, device, Bytes(4096), 64 + random() % 961, random));
  }
  const int wanted = lab.quick ? 64 : 100'000;
  const double end = now_s() + 6;
  int done = 0;
  double slowest = 0;
  while (done < wanted && now_s() < end) {
    const double start = now_s();
    for (CopyList& list : lists)
      KVD_TRY(gpu.check(batch(gpu, list, true, gpu.stream()), "a batch of copies"));
    KVD_TRY(gpu.finish());
    slowest = std::max(slowest, now_s() - start);
    done += static_cast<int>(lists.size());
  }
  lab.out.figure("scattered batches", done, "");
  lab.out.figure("slowest 32 of them", slowest * 1e3, "ms");
  KVD_ASSIGN_OR_RETURN(const std::uint64_t wrong,
                       gpu.count(Gpu::Kernel::kCheck, device.address(), host.size(), kSalt));
  lab.out.require("every byte is right after them", wrong == 0);
  return {};
}

}  // namespace

Status batches(const Lab& lab) {
  KVD_ASSIGN_OR_RETURN(const auto gpu, Gpu::open());
  if (gpu->driver().memcpy_batch_async == nullptr) {
    lab.out.skip("the driver has no batches in the form of CUDA 13.0");
    return {};
  }
  const Bytes size = lab.quick ? kMiB * 4 : kMiB * 64;
  KVD_ASSIGN_OR_RETURN(const PinnedMemory host, PinnedMemory::make(*gpu, size));
  KVD_ASSIGN_OR_RETURN(const GpuSlab device, GpuSlab::make(*gpu, size));
  // The pattern, made by the device where it is to be compared; then the device's copy is spoilt.
  KVD_TRY(gpu->launch(Gpu::Kernel::kFill, gpu->stream().get(), device.address(), size, kSalt));
  KVD_TRY(gpu->check(gpu->driver().memcpy_dtoh_async(host.data(), device.address(), size.size(),
                                                     gpu->stream().get()),
                     "reading the pattern"));
  KVD_TRY(gpu->check(
      gpu->driver().memset_d8_async(device.address(), 0, size.size(), gpu->stream().get()),
      "clearing"));
  KVD_TRY(gpu->finish());
  KVD_TRY(flag(lab, *gpu, host, device));
  for (const Bytes piece : {kKiB * 16, kKiB * 64}) {
    for (const bool out : {false, true}) {
      KVD_TRY(several_streams(lab, *gpu, host, device, piece, out));
    }
  }
  return endurance(lab, *gpu, host, device);
}

}  // namespace kvd::gpu
