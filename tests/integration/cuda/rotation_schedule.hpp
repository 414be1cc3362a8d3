#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "ipc/vocabulary/clock.hpp"
#include "kernels/device/cuda/cuda_backend.hpp"

namespace kvd::tests {

/// What a broken driver loop leaves out. Each must be seen by its wrong bytes, or the test sees
/// nothing.
enum class Mutant : std::uint8_t {
  kNone,
  kNoFenceWait,      ///< an iteration reads blocks without waiting for their swap-in's fence
  kNoIterationWait,  ///< blocks swapped out while the iteration that fills them still runs (rule 3)
  kFillWhileLeaving,  ///< a slot filled anew while its D2H is in flight (rule 4)
  kLoadWhileLeaving,  ///< a slot that an H2D writes while its D2H is in flight (rule 4)
  kLoadTooEarly,      ///< swapped in from DRAM before the swap-out into it was done
  kCorruptByte,       ///< nothing left out: one byte of a parked block flipped (corruption control)
};

/// One engine and one daemon's driver loop over the real CudaBackend: random requests come, run
/// some iterations, rotate out to DRAM and back in, with fewer slots than they need. Every block's
/// bytes follow from (request, token, layer); each iteration checks all it reads, on the device, in
/// an engine's stream that nothing but fences and events orders.
/// Source: kvd/DESIGN.md "Safety rules", rules 1, 3 and 4.
class RotationSchedule {
 public:
  /// Its slabs and streams, shared by the schedules that run one after another.
  class World;

  RotationSchedule(World& world, std::uint64_t seed, Mutant mutant);
  /// Plays `steps` iterations, parks everybody and checks the bytes in DRAM. Returns the blocks
  /// that held a wrong byte.
  std::uint64_t play(unsigned steps);

 private:
  static constexpr unsigned kLayers = 4;
  using Slots = std::vector<std::size_t>;

  enum class State : std::uint8_t { kRunning, kLeaving, kParked };
  struct Request {
    std::uint64_t id = 0;
    std::uint64_t token = 0;  // the content of its blocks; zero: nothing yet
    State state = State::kRunning;
    Slots hbm, dram;  // by layer
    Ticket copy;
    std::optional<std::uint64_t> fence;  // fence to wait for before the next iteration
  };
  struct Copy {
    Request* request;
    Slots freed;  // slots of the source's tier, free once the copy is done
    bool out;
  };

  bool chance(unsigned percent) { return random_() % 100 < percent; }
  void step();
  void wait_for_iteration();
  /// Takes what has ended; with `wait`, at least one copy if any is under way.
  void settle(bool wait);
  void finish(const kernels::Completion& done);
  void retire_some();
  void swap_out_some();
  void swap_in_some();
  void admit_some();
  void iterate();
  void check_and_fill(Request& request);
  bool swap_out(Request& request);
  bool swap_in(Request& request);
  void submit(Request& request, bool out, const Slots& from, const Slots& to);
  /// The slots of one request, if there are enough. HBM slots whose D2H is in flight are taken
  /// first when the driver loop is the mutant that does so.
  std::optional<Slots> take_hbm(Mutant early);
  std::optional<Slots> take_dram();
  void park_everybody();
  void corrupt_once();
  std::uint64_t wrong_in_dram() const;

  World& world_;
  std::mt19937_64 random_;
  const Mutant mutant_;
  Slots free_hbm_, free_dram_;
  std::vector<std::unique_ptr<Request>> requests_;
  std::map<std::uint64_t, Copy> copies_;
  std::uint64_t next_id_ = 1;
  bool corrupted_ = false;
};

class RotationSchedule::World {
 public:
  static constexpr std::size_t kBlock = 8192;
  static constexpr std::size_t kHbmSlots = 14, kDramSlots = 24;

  World();
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  bool ready() const { return ready_; }

 private:
  friend class RotationSchedule;

  SteadyClock clock_;
  std::unique_ptr<kernels::CudaBackend> backend_;
  kernels::Slab hbm_, dram_;
  std::atomic<std::uint64_t>* fence_ = nullptr;  // in a page of its own, as a client's
  CUdeviceptr fence_on_device_ = 0;
  std::uint64_t last_ticket_ = 0;
  CUcontext context_ = nullptr;
  CUstream engine_ = nullptr;
  CUevent iteration_ = nullptr;
  CUmodule module_ = nullptr;
  CUfunction fill_ = nullptr, check_ = nullptr;
  std::atomic<std::uint64_t> wrong_{0};
  bool ready_ = false;
};

}  // namespace kvd::tests
