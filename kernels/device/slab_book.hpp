#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "kernels/device/copy_batch.hpp"
#include "kernels/device/slab.hpp"

namespace kvd::kernels {

/// What a backend has done since it was made.
struct DeviceCounters {
  std::uint64_t slabs_created = 0;
  std::uint64_t slabs_destroyed = 0;
  std::uint64_t slab_failures = 0;
  std::array<Bytes, kTiers> live;                              ///< bytes of live slabs
  std::array<std::uint64_t, kDirections> batches_submitted{};  ///< accepted by submit()
  /// Handed out by poll(), failed ones included.
  std::array<std::uint64_t, kDirections> batches_completed{};
  std::array<std::uint64_t, kDirections> batches_failed{};
  std::array<Bytes, kDirections> bytes;  ///< of completed batches that did not fail
  std::array<Nanoseconds, kDirections> busy{};
};

/// The live slabs of a backend, and the batches in flight that touch them. A slab is in use until
/// the last of them has settled, and while a reader holds it.
/// Owner:  any thread; its lock is not held while the device works.
/// Errors: as DeviceBackend.
class SlabBook {
 public:
  /// Enters a slab that was made, or counts the failure.
  Result<Slab> made(Result<Slab> slab);
  /// Enters a slab of another backend, under a handle of this one.
  [[nodiscard]] SlabHandle adopt(Slab slab);
  [[nodiscard]] static bool is_adopted(SlabHandle handle);
  /// Errors: NotFound for an unknown slab, WouldBlock for one in use.
  Status forget(SlabHandle handle);
  [[nodiscard]] Status check_live(SlabHandle handle) const;
  /// Errors: InvalidArgument for bytes that are not within one live slab.
  [[nodiscard]] Result<SlabHandle> hold(std::uintptr_t address, Bytes length);
  void let_go(SlabHandle handle);
  /// The live slab that has this address. Precondition: there is one.
  [[nodiscard]] Slab holding(std::uintptr_t address) const;

  /// Puts a batch in flight. Errors: InvalidArgument for a bad one.
  [[nodiscard]] Status begin(const CopyBatch& batch);
  /// The device did not take the batch after all.
  void take_back(Ticket ticket);
  /// A completion whose ticket is not in flight was reported twice by the device: it counts once.
  void settle(const Completion& completion);
  [[nodiscard]] DeviceCounters counters() const;

 private:
  struct LiveSlab {
    Slab slab;
    std::size_t uses = 0;  // by batches in flight, once for each extent end here, and readers
  };
  struct InFlight {
    Direction direction;
    std::vector<SlabHandle> touched;
  };

  // Call these with mutex_ held.
  void enter(const Slab& slab);
  [[nodiscard]] Result<SlabHandle> slab_of(std::uintptr_t address, Bytes length) const;
  [[nodiscard]] Status check_extent(const CopyExtent& extent,
                                    std::vector<SlabHandle>& touched) const;
  [[nodiscard]] Result<InFlight> check(const CopyBatch& batch) const;
  InFlight end(Ticket ticket);

  mutable std::mutex mutex_;
  std::uint64_t last_adopted_ = 0;
  std::unordered_map<SlabHandle, LiveSlab> slabs_;
  std::map<std::uintptr_t, SlabHandle> by_address_;
  std::unordered_map<Ticket, InFlight> in_flight_;
  DeviceCounters counters_;
};

}  // namespace kvd::kernels
