// Waiting for a value in memory and writing one, in stream order.
#include <chrono>
#include <thread>

#include "tests/support/fakecuda/driver.hpp"
#include "tests/support/fakecuda/report.hpp"

namespace fakecuda {
namespace {

constexpr unsigned kMostOperations = 255;

struct MemoryOperation {
  bool write = false;
  unsigned width = 8;
  CUdeviceptr address = 0;
  std::uint64_t value = 0;
  unsigned flags = 0;
};

template <class Unsigned, class Signed>
bool holds(Unsigned now, Unsigned value, unsigned flags) {
  switch (flags) {
    case CU_STREAM_WAIT_VALUE_GEQ:
      return static_cast<Signed>(now - value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
      return now == value;
    case CU_STREAM_WAIT_VALUE_AND:
      return (now & value) != 0;
    default:
      return static_cast<Unsigned>(~(now | value)) != 0;
  }
}

bool holds_in_memory(const std::byte* at, const MemoryOperation& wait) {
  if (wait.width == 8) {
    const auto now = __atomic_load_n(reinterpret_cast<const std::uint64_t*>(at), __ATOMIC_ACQUIRE);
    return holds<std::uint64_t, std::int64_t>(now, wait.value, wait.flags);
  }
  const auto now = __atomic_load_n(reinterpret_cast<const std::uint32_t*>(at), __ATOMIC_ACQUIRE);
  return holds<std::uint32_t, std::int32_t>(now, static_cast<std::uint32_t>(wait.value),
                                            wait.flags);
}

// A real stream would wait forever; here a bound tells of the deadlock.
CUresult wait_for_value(const CUstream_st& stream, const std::byte* at,
                        const MemoryOperation& wait) {
  using Clock = std::chrono::steady_clock;
  const auto limit = Clock::now() + std::chrono::milliseconds(driver().config.wait_limit_ms);
  for (unsigned looks = 0; !holds_in_memory(at, wait); ++looks) {
    if (stream.given_up()) return CUDA_SUCCESS;
    if (Clock::now() > limit) {
      violation("wait_value_deadlock",
                "no " + std::to_string(wait.value) + " at " + hex(wait.address) + " in time");
      return CUDA_ERROR_LAUNCH_TIMEOUT;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(looks < 100 ? 10 : 200));
  }
  return CUDA_SUCCESS;
}

CUresult run(CUstream_st& stream, const MemoryOperation& operation) {
  if (operation.write) stream.pause();
  const auto found =
      touch(stream.context->device, operation.address, operation.width, operation.write);
  if (found.empty()) return CUDA_ERROR_ILLEGAL_ADDRESS;
  std::byte* at = found.front().data;
  if (!operation.write) return wait_for_value(stream, at, operation);
  if (operation.width == 8) {
    __atomic_store_n(reinterpret_cast<std::uint64_t*>(at), operation.value, __ATOMIC_RELEASE);
  } else {
    __atomic_store_n(reinterpret_cast<std::uint32_t*>(at),
                     static_cast<std::uint32_t>(operation.value), __ATOMIC_RELEASE);
  }
  return CUDA_SUCCESS;
}

// Registered memory is named by its device pointer here, never by the host's.
CUresult check(const MemoryOperation& operation) {
  const unsigned most = operation.write ? 0 : unsigned{CU_STREAM_WAIT_VALUE_NOR};
  if (!driver().config.stream_memory_operations) return CUDA_ERROR_NOT_SUPPORTED;
  if (operation.flags & CU_STREAM_WAIT_VALUE_FLUSH) return CUDA_ERROR_NOT_SUPPORTED;
  if (operation.flags > most || operation.address % operation.width != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Driver& d = driver();
  const std::lock_guard lock(d.mutex);
  const Space space = classify(operation.address, operation.width);
  if (space != Space::kDevice && space != Space::kHost) return CUDA_ERROR_INVALID_VALUE;
  const auto found = d.host.find(operation.address);
  const bool by_host =
      found != d.host.none() && operation.address - found->first < found->second.size;
  const bool mapped =
      found == d.host.none() || (found->second.flags & CU_MEMHOSTREGISTER_DEVICEMAP);
  return by_host || !mapped ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult queue(CUstream handle, const std::vector<MemoryOperation>& operations) {
  std::shared_ptr<CUstream_st> stream;
  if (const CUresult r = find_stream(handle, stream)) return r;
  for (const MemoryOperation& operation : operations) {
    if (const CUresult r = check(operation)) return r;
  }
  for (const MemoryOperation& operation : operations) {
    Operation queued;
    queued.touches = {{operation.address, operation.width}};
    queued.run = [operation](CUstream_st& self) { return run(self, operation); };
    enqueue(stream, std::move(queued));
  }
  return CUDA_SUCCESS;
}

// False for what the batch cannot hold; barriers add nothing to a stream that works in order.
bool read_item(const CUstreamBatchMemOpParams& item, std::vector<MemoryOperation>& operations) {
  switch (static_cast<int>(item.operation)) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WAIT_VALUE_64: {
      const bool narrow = item.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32;
      operations.push_back({false, narrow ? 4u : 8u, item.waitValue.address,
                            narrow ? item.waitValue.value : item.waitValue.value64,
                            item.waitValue.flags});
      return true;
    }
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
    case CU_STREAM_MEM_OP_WRITE_VALUE_64: {
      const bool narrow = item.operation == CU_STREAM_MEM_OP_WRITE_VALUE_32;
      operations.push_back({true, narrow ? 4u : 8u, item.writeValue.address,
                            narrow ? item.writeValue.value : item.writeValue.value64,
                            item.writeValue.flags});
      return true;
    }
    case CU_STREAM_MEM_OP_BARRIER:
      return item.memoryBarrier.flags == 0;
    default:
      return false;
  }
}

}  // namespace
}  // namespace fakecuda

using fakecuda::enter;
using fakecuda::Needs;

CUresult CUDAAPI cuStreamWaitValue64(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                     unsigned int flags) {
  if (const CUresult r = enter("cuStreamWaitValue64", Needs::kContext)) return r;
  return fakecuda::queue(stream, {{false, 8, address, value, flags}});
}

CUresult CUDAAPI cuStreamWriteValue64(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                      unsigned int flags) {
  if (const CUresult r = enter("cuStreamWriteValue64", Needs::kContext)) return r;
  return fakecuda::queue(stream, {{true, 8, address, value, flags}});
}

CUresult CUDAAPI cuStreamBatchMemOp(CUstream stream, unsigned int count,
                                    CUstreamBatchMemOpParams* items, unsigned int flags) {
  if (const CUresult r = enter("cuStreamBatchMemOp", Needs::kContext)) return r;
  if (items == nullptr || count == 0 || count > fakecuda::kMostOperations || flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::vector<fakecuda::MemoryOperation> operations;
  for (unsigned i = 0; i < count; ++i) {
    if (!fakecuda::read_item(items[i], operations)) return CUDA_ERROR_NOT_SUPPORTED;
  }
  return fakecuda::queue(stream, operations);
}
