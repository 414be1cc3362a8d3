#pragma once

#include <cuda.h>

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kernels/device/cuda/copies/stream.hpp"
#include "kernels/device/cuda/driver/device.hpp"
#include "kernels/device/cuda/driver/driver.hpp"
#include "kernels/device/cuda/driver/health.hpp"
#include "kernels/device/cuda/memory/slabs.hpp"
#include "kernels/device/device_backend.hpp"

namespace kvd::kernels::cuda {

/// What readers share; all of it outlives them.
struct ReadbackWorld {
  const Driver& driver;
  const Capabilities& capabilities;
  Health& health;
  Nanoseconds stall_limit;
};

/// Shows device memory to the CPU, past the copy queues. Each reader has a stream, and pinned
/// memory for the most that it has read; both are kept for the next reader. Bytes come in pieces,
/// and a piece is queued only when the one before has arrived, because a small copy of an engine
/// may wait in the same hardware queue: it then waits for one piece only.
/// Owner:  read() is thread-safe. A context is current in it and at destruction.
/// Errors: OutOfMemory where the host has no room; those of the driver. A piece that does not
/// visibly end in time means that the device is lost: then this object must stay for ever.
class Readback {
 public:
  static constexpr Bytes kPiece = kMiB;

  explicit Readback(const ReadbackWorld& world) : world_(world) {}
  Readback(const Readback&) = delete;
  Readback& operator=(const Readback&) = delete;
  /// Precondition: nobody is reading.
  ~Readback() = default;

  [[nodiscard]] Status read(CUdeviceptr from, Bytes length, const Look& look);

 private:
  struct Reader {
    explicit Reader(Stream own) : stream(std::move(own)) {}
    Stream stream;
    std::optional<DramSlab> room;
    Bytes size;  ///< size of the room
  };

  [[nodiscard]] Result<std::unique_ptr<Reader>> take();
  [[nodiscard]] Status make_room(Reader& reader, Bytes length) const;
  [[nodiscard]] Status fill(Reader& reader, CUdeviceptr from, Bytes length) const;

  const ReadbackWorld world_;
  std::mutex mutex_;  // guards idle_
  std::vector<std::unique_ptr<Reader>> idle_;
};

}  // namespace kvd::kernels::cuda
