#include "tests/gpu/copy_arena.hpp"

#include <cudaTypedefs.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace kvd::gpu {
namespace {

constexpr std::uint32_t kMostSegments = 16384;
constexpr int kLeastRounds = 3;

std::size_t index(Direction direction) { return static_cast<std::size_t>(direction); }

}  // namespace

const char* name(Method method) {
  constexpr const char* kNames[] = {"batch", "loop", "waited", "rows2d", "rows3d"};
  return kNames[static_cast<std::size_t>(method)];
}

Result<std::unique_ptr<CopyArena>> CopyArena::make(const Gpu& gpu, Bytes half) {
  KVD_ASSIGN_OR_RETURN(GpuSlab device, GpuSlab::make(gpu, half * 2));
  KVD_ASSIGN_OR_RETURN(PinnedMemory host, PinnedMemory::make(gpu, half * 4));
  KVD_ASSIGN_OR_RETURN(cuda::Stream in, cuda::Stream::create(gpu.driver()));
  KVD_ASSIGN_OR_RETURN(cuda::Stream out, cuda::Stream::create(gpu.driver()));
  return std::unique_ptr<CopyArena>(new CopyArena(gpu, half, std::move(device), std::move(host),
                                                  {std::move(in), std::move(out)}));
}

CopyArena::CopyArena(const Gpu& gpu, Bytes half, GpuSlab device, PinnedMemory host,
                     std::array<cuda::Stream, 2> streams)
    : gpu_(gpu),
      half_(half),
      device_(std::move(device)),
      host_(std::move(host)),
      streams_(std::move(streams)) {}

// Slots of the direction's half in random order at the host, packed at the device: what a request's
// blocks look like to the pool.
CopyArena::Work CopyArena::prepare(Direction direction, Bytes segment, std::uint32_t count) {
  const bool in = direction == Direction::kHostToDevice;
  const std::size_t side = index(direction);
  Work work;
  work.segment = segment;
  work.count = count;
  work.device = device_.address() + side * half_.size();
  work.host = host_.address() + side * 2 * half_.size();
  std::vector<std::uint32_t> order(
      std::min<std::size_t>(static_cast<std::size_t>(half_ / segment),
                            std::max<std::size_t>(std::size_t{count} * 2, 64)));
  std::iota(order.begin(), order.end(), 0u);
  std::shuffle(order.begin(), order.end(), std::mt19937(1));
  for (std::uint32_t i = 0; i < count; ++i) {
    const CUdeviceptr host = work.host + order[i] * segment.size();
    const CUdeviceptr device = work.device + i * segment.size();
    work.copies.to.push_back(in ? device : host);
    work.copies.from.push_back(in ? host : device);
    work.copies.lengths.push_back(segment.size());
  }
  work.copies.bytes = segment * count;
  return work;
}

Status CopyArena::start(Method method, Direction direction, Work& work) {
  const cuda::Stream& stream = streams_[index(direction)];
  switch (method) {
    case Method::kBatch:
      return gpu_.check(stream.copy(work.copies), "a batch of copies");
    case Method::kLoop:
    case Method::kWaited:
      return one_by_one(work, stream.get(), method == Method::kWaited);
    case Method::kRows2D:
      return rows_2d(direction, work, stream.get());
    case Method::kRows3D:
      return rows_3d(direction, work, stream.get());
  }
  return make_error(ErrorCode::kInternal, "no such method");
}

Status CopyArena::one_by_one(const Work& work, CUstream stream, bool wait) {
  for (std::size_t i = 0; i < work.count; ++i) {
    KVD_TRY(gpu_.check(gpu_.driver().memcpy_async(work.copies.to[i], work.copies.from[i],
                                                  work.copies.lengths[i], stream),
                       "a copy"));
    if (wait) KVD_TRY(gpu_.finish(stream));
  }
  return {};
}

Status CopyArena::rows_2d(Direction direction, const Work& work, CUstream stream) {
  const bool in = direction == Direction::kHostToDevice;
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  copy.srcDevice = in ? work.host : work.device;
  copy.dstDevice = in ? work.device : work.host;
  copy.srcPitch = work.segment.size() * (in ? 2 : 1);
  copy.dstPitch = work.segment.size() * (in ? 1 : 2);
  copy.WidthInBytes = work.segment.size();
  copy.Height = work.count;
  return gpu_.check(gpu_.driver().memcpy_2d_async(&copy, stream), "a strided copy");
}

Status CopyArena::rows_3d(Direction direction, const Work& work, CUstream stream) {
  void* entry = nullptr;
  if (gpu_.driver().get_proc_address("cuMemcpy3DBatchAsync", &entry, 13000,
                                     CU_GET_PROC_ADDRESS_LEGACY_STREAM, nullptr) != CUDA_SUCCESS ||
      entry == nullptr) {
    return make_error(ErrorCode::kUnsupported, "the driver has no cuMemcpy3DBatchAsync of 13.0");
  }
  const bool in = direction == Direction::kHostToDevice;
  CUDA_MEMCPY3D_BATCH_OP copy{};
  const auto operand = [&](CUmemcpy3DOperand& side, bool host) {
    side.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    side.op.ptr.ptr = host ? work.host : work.device;
    side.op.ptr.rowLength = work.segment.size() * (host ? 2 : 1);
    side.op.ptr.layerHeight = work.count;
  };
  operand(copy.src, in);
  operand(copy.dst, !in);
  copy.extent = {work.segment.size(), work.count, 1};
  copy.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  return gpu_.check(reinterpret_cast<PFN_cuMemcpy3DBatchAsync_v13000>(entry)(1, &copy, 0, stream),
                    "a batch of strided copies");
}

Result<double> CopyArena::median_rate(double bytes, double budget_s,
                                      const std::function<Status()>& round) {
  KVD_TRY(round());
  std::vector<double> seconds;
  const double end = now_s() + budget_s;
  while (seconds.size() < kLeastRounds || (now_s() < end && seconds.size() < 101)) {
    const double start = now_s();
    KVD_TRY(round());
    seconds.push_back(now_s() - start);
  }
  return bytes / percentile(std::move(seconds), 0.5);
}

Result<double> CopyArena::rate(Method method, Direction direction, Bytes segment,
                               std::uint32_t count, double budget_s) {
  if (segment * count > half_ || count > kMostSegments) {
    return make_error(ErrorCode::kInvalidArgument, "more than the arena holds");
  }
  Work work = prepare(direction, segment, count);
  return median_rate(static_cast<double>(work.copies.bytes.value), budget_s, [&]() -> Status {
    KVD_TRY(start(method, direction, work));
    return gpu_.finish(streams_[index(direction)].get());
  });
}

Result<double> CopyArena::duplex_rate(Method method, Bytes segment, std::uint32_t count,
                                      double budget_s) {
  if (segment * count > half_ || count > kMostSegments) {
    return make_error(ErrorCode::kInvalidArgument, "more than the arena holds");
  }
  Work in = prepare(Direction::kHostToDevice, segment, count);
  Work out = prepare(Direction::kDeviceToHost, segment, count);
  return median_rate(2.0 * static_cast<double>(in.copies.bytes.value), budget_s, [&]() -> Status {
    KVD_TRY(start(method, Direction::kHostToDevice, in));
    KVD_TRY(start(method, Direction::kDeviceToHost, out));
    KVD_TRY(gpu_.finish(streams_[0].get()));
    return gpu_.finish(streams_[1].get());
  });
}

}  // namespace kvd::gpu
