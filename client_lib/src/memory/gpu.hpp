#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "client_lib/src/memory/slab_memory.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"

namespace kvd::client {

/// A page of fence words that streams of this process may wait on.
/// Owner:   thread-safe. Goes before the page is unmapped, see close().
class StreamFences {
 public:
  virtual ~StreamFences() = default;
  /// Waits, at most a second, for the streams to pass what was enqueued, and gives the page up. It
  /// is the last call, after the words have been released (poison()). False: a stream may still
  /// write to the page, which then has to stay mapped for ever.
  [[nodiscard]] virtual bool close() = 0;
  /// Enqueues "until word >= value" in the stream, a CUstream of this GPU or null for the default
  /// one, and returns at once. Precondition: the word stands in the page.
  /// Errors: Unsupported where the driver cannot; InvalidArgument where the stream is being
  ///         captured, as a graph would wait for the same value at each launch; DeviceError.
  virtual Status wait(void* stream, const std::atomic<std::uint64_t>& word,
                      std::uint64_t value) = 0;
  /// Enqueues "word = value" and returns at once. When the stream has done it, the page's Told runs
  /// beside the stream, which does not wait for it. Precondition and errors as above.
  virtual Status write(void* stream, const std::atomic<std::uint64_t>& word,
                       std::uint64_t value) = 0;

 protected:
  StreamFences() = default;
  StreamFences(const StreamFences&) = default;
  StreamFences& operator=(const StreamFences&) = default;
};

/// The GPU of a daemon whose slabs are CUDA allocations, as this process uses it: by the driver API
/// and the device's primary context, which the runtime API and PyTorch use too. Memory that it
/// reserved keeps it alive.
/// Source:  kvd/DESIGN.md "Safety rules"; the CUDA driver API's virtual memory management.
/// Owner:   thread-safe; dead in a forked child
class Gpu : public SlabMemory {
 public:
  /// Whether this library has CUDA parts at all; says nothing about the machine.
  [[nodiscard]] static bool is_built();
  /// Loads the driver and looks for the GPU.
  /// Errors: Unsupported with the reason and the remedy.
  [[nodiscard]] static Result<std::shared_ptr<Gpu>> find(const std::array<std::uint8_t, 16>& uuid);

  /// Its number in this process, as the runtime API counts.
  [[nodiscard]] virtual int ordinal() const = 0;
  /// Called with each value that was written, on a thread of the driver. It must not call CUDA.
  using Told = std::function<void(std::uint64_t)>;
  /// Whether the stream, of the thread's current context, is being captured; asking does a capture
  /// no harm.
  [[nodiscard]] static bool is_captured(void* stream);
  /// Lets streams wait on the words of a mapped page and write them.
  /// Errors: Unsupported where the GPU cannot; those of registering the page.
  virtual Result<std::unique_ptr<StreamFences>> fences_in(void* page, Bytes size, Told told) = 0;
};

}  // namespace kvd::client
