#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>

#include "kernels/device/cuda/copies/extent_cursor.hpp"
#include "kernels/device/device_backend.hpp"
#include "tests/gpu/lab.hpp"

namespace kvd::gpu {

using kernels::Direction;

/// Ways to move many segments between scattered places of the host and of the device.
enum class Method : std::uint8_t {
  kBatch,   ///< one call for all, on the copy engine
  kLoop,    ///< a call each, on the copy engine
  kWaited,  ///< the same, each waited for before the next
  kRows2D,  ///< a strided copy of as many rows (regular distances, not scattered)
  kRows3D,  ///< the same by the batched 3D call
};
constexpr std::size_t kMethods = 5;
[[nodiscard]] const char* name(Method method);

/// Host and device memory with segments to copy, half of each for either direction.
/// Owner: one thread; the Gpu outlives it.
class CopyArena {
 public:
  /// `half`: bytes a direction may move at a time.
  [[nodiscard]] static Result<std::unique_ptr<CopyArena>> make(const Gpu& gpu, Bytes half);

  [[nodiscard]] Bytes half() const { return half_; }
  /// Bytes a second: the median of several rounds within about `budget_s`, each from the first call
  /// to the last byte. Strided methods need twice the room at the host.
  /// Errors: Unsupported where the driver lacks the call; those of the driver.
  [[nodiscard]] Result<double> rate(Method method, Direction direction, Bytes segment,
                                    std::uint32_t count, double budget_s);
  /// The same with both directions at once; bytes of both together.
  [[nodiscard]] Result<double> duplex_rate(Method method, Bytes segment, std::uint32_t count,
                                           double budget_s);

 private:
  struct Work {
    kernels::cuda::CopyList copies;
    CUdeviceptr host = 0, device = 0;
    Bytes segment;
    std::uint32_t count = 0;
  };
  CopyArena(const Gpu& gpu, Bytes half, GpuSlab device, PinnedMemory host,
            std::array<cuda::Stream, 2> streams);
  Work prepare(Direction direction, Bytes segment, std::uint32_t count);
  Status start(Method method, Direction direction, Work& work);
  Status one_by_one(const Work& work, CUstream stream, bool wait);
  Status rows_2d(Direction direction, const Work& work, CUstream stream);
  Status rows_3d(Direction direction, const Work& work, CUstream stream);
  Result<double> median_rate(double bytes, double budget_s, const std::function<Status()>& round);

  const Gpu& gpu_;
  Bytes half_;
  GpuSlab device_;
  PinnedMemory host_;
  std::array<cuda::Stream, 2> streams_;
};

}  // namespace kvd::gpu
