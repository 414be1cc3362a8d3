#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "client_lib/src/memory/gpu.hpp"
#include "kernels/device/cuda/copies/stream.hpp"
#include "kernels/device/cuda/driver/context.hpp"
#include "kernels/device/cuda/driver/driver.hpp"
#include "kernels/device/cuda/memory/host_registration.hpp"

namespace kvd::client {

/// StreamFences by stream memory operations on a page of host memory that both sides map.
/// Source:  kvd: timeline words in host memory, which a CPU store can release when the daemon is
///          dead. The waits are the CUDA driver API's stream memory operations.
/// Owner:   as StreamFences
class GpuFences final : public StreamFences {
 public:
  static Result<std::unique_ptr<StreamFences>> make(std::shared_ptr<const void> gpu,
                                                    const kernels::cuda::PrimaryContext& context,
                                                    void* page, Bytes size, Gpu::Told told);
  ~GpuFences() override { (void)close(); }

  bool close() override;
  Status wait(void* stream, const std::atomic<std::uint64_t>& word, std::uint64_t value) override;
  Status write(void* stream, const std::atomic<std::uint64_t>& word, std::uint64_t value) override;

 private:
  /// An event without timing, which is the cheapest kind.
  class Mark {
   public:
    static Result<Mark> make(const kernels::cuda::Driver& driver);
    Mark(Mark&& other) noexcept
        : driver_(other.driver_), event_(std::exchange(other.event_, nullptr)) {}
    Mark& operator=(Mark&&) = delete;
    ~Mark();

    Status record(CUstream stream);
    /// Call it only while no capture keeps the driver from answering.
    [[nodiscard]] bool passed() const;
    [[nodiscard]] CUevent get() const { return event_; }

   private:
    explicit Mark(const kernels::cuda::Driver& driver) : driver_(driver) {}
    const kernels::cuda::Driver& driver_;
    CUevent event_ = nullptr;
  };

  /// Calls Told while this object lives, as the driver may still call later.
  struct Listener {
    std::mutex mutex;
    Gpu::Told told;  ///< null: nobody listens any more
  };
  struct Call {
    std::shared_ptr<Listener> listener;
    std::uint64_t value;
  };

  GpuFences(std::shared_ptr<const void> gpu, const kernels::cuda::PrimaryContext& context,
            kernels::cuda::HostRegistration page, kernels::cuda::Stream tellers, Gpu::Told told);
  [[nodiscard]] CUdeviceptr address_of(const std::atomic<std::uint64_t>& word) const;
  /// The mark behind the last operation in the stream.
  Result<Mark*> mark_of(CUstream stream);
  /// Has the stream do the operation, then marks how far the stream is, and has the value told when
  /// the stream reaches that mark.
  template <class Operation>
  Status enqueue(void* stream, const char* name, std::optional<std::uint64_t> tell,
                 Operation operation);
  Status tell_after(const Mark& mark, std::uint64_t value);
  static void run(void* call);
  [[nodiscard]] bool wait_for_streams();
  [[nodiscard]] bool unregister();

  const std::shared_ptr<const void> gpu_;  ///< keeps the context
  const kernels::cuda::PrimaryContext& context_;
  const std::shared_ptr<Listener> listener_ = std::make_shared<Listener>();
  std::mutex mutex_;  ///< guards everything below
  std::unique_ptr<kernels::cuda::HostRegistration> page_;
  std::unordered_map<CUstream, Mark> marks_;
  /// The stream where Told runs. It is made first, as making a stream may have to wait for streams
  /// that wait.
  std::unique_ptr<kernels::cuda::Stream> tellers_;
  bool told_ = false;  ///< something was given to tellers_
};

}  // namespace kvd::client
