#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/unique_fd.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kernels/copy/copy_extent.hpp"

namespace kvd::kernels {

/// The two copy queues of a device, which run at once.
enum class Direction : std::uint8_t { kHostToDevice = 0, kDeviceToHost = 1 };
constexpr std::size_t kDirections = 2;
constexpr const char* name(Direction d) { return d == Direction::kHostToDevice ? "h2d" : "d2h"; }

/// What backs a slab's pages, in the order the host backend tries them.
enum class PageKind : std::uint8_t { kHugetlb, kTransparentHuge, kSmall, kDevice };
constexpr const char* name(PageKind kind) {
  constexpr const char* kNames[] = {"hugetlb", "thp", "4k", "device"};
  return kNames[static_cast<std::size_t>(kind)];
}

/// Names one live slab of a backend; never reused while the backend lives.
using SlabHandle = Id<struct SlabHandleTag, std::uint64_t>;

/// One physical allocation of a tier, mapped where the backend's copy queues can reach it. Slabs of
/// one backend are never adjacent in address space, so a merged run stays within one slab.
struct Slab {
  SlabHandle handle;
  Tier tier = Tier::kHbm;
  Bytes size;
  /// Address in the copy queues' address space: a host pointer, or a CUdeviceptr for HBM on CUDA.
  std::uintptr_t address = 0;
  PageKind pages = PageKind::kSmall;
};

/// A stretch of a slab, which begins at zero.
struct SlabExtent {
  Bytes from;
  Bytes length;
  friend bool operator==(const SlabExtent&, const SlabExtent&) = default;
};

/// Looks at bytes, which are there only during the call.
using Look = std::function<void(std::span<const std::byte>)>;

/// A fence word in host memory shared with one client. The backend stores `value` with release
/// order after every byte of the batch is complete and never before (safety rule 1).
/// A waiter reads the word with acquire order until it is >= its ticket. In between it may sleep in
/// FUTEX_WAIT (shared, not private) on the word's low 32 bits, always with a timeout: a copy
/// queue's thread wakes that futex after each store. A word in an adopted page (adopt_page()) is
/// written by the copy engine itself and the wake follows later; any other word is written by that
/// thread.
struct Fence {
  std::atomic<std::uint64_t>* word = nullptr;  ///< null: nobody waits for this batch
  std::uint64_t value = 0;
};

/// Copies that complete together. Extents of one batch have no order among themselves and must not
/// overlap. Batches of one direction complete in order, but their bytes need not move in it. A
/// batch without extents is allowed: its fence is written when the batches before it are done.
struct CopyBatch {
  Ticket ticket;  ///< not none, and not the ticket of another batch of this backend in flight
  Direction direction = Direction::kHostToDevice;
  std::vector<CopyExtent> extents;
  Fence fence;
  bool in_place = false;  ///< within one tier: it crosses no link, however slow that is
};

/// A batch that has ended. After a failure none of its destination bytes may be trusted, and its
/// fence was not written.
struct Completion {
  Ticket ticket;
  Status status;
  Bytes bytes;
  Nanoseconds busy{0};  ///< time the queue worked on this batch, for the measured link rate
};

/// Identifies the GPU that has the HBM slabs by what both sides of a socket can compare: ordinals
/// differ between processes and containers, the UUID does not (for a MIG device it is that of the
/// instance).
struct DeviceIdentity {
  std::array<std::uint8_t, 16> uuid{};
  std::string name;
  friend bool operator==(const DeviceIdentity&, const DeviceIdentity&) = default;
};

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

/// Obtains memory that other processes can map, and moves bytes between tiers. Public functions
/// check and count; the virtual ones below them do the work.
/// Source:  kvd/DESIGN.md "Bytes on their way", "Safety rules".
/// Owner:   the control thread calls everything; submit, poll, the counters, and all that makes,
/// exports, reads and ends slabs are thread-safe.
/// Errors:  OutOfMemory when the tier has no memory left; InvalidArgument for a size that is not a
/// multiple of granularity() or a bad batch; NotFound for an unknown slab; WouldBlock for a slab
/// still in use; DeviceError when the device failed. Never throws.
/// A slab is in use until poll() has handed out the last batch that touches it, and while
/// read_slab() looks at it. Destruction ends the copy queues: batches that have not started are
/// dropped, and their fences stay unwritten.
class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;
  DeviceBackend(const DeviceBackend&) = delete;
  DeviceBackend& operator=(const DeviceBackend&) = delete;

  /// Slab sizes of `tier` must be multiples of this.
  [[nodiscard]] virtual Bytes granularity(Tier tier) const = 0;
  /// All the memory that exists for the tier; none: it is the machine's.
  [[nodiscard]] virtual std::optional<Bytes> memory(Tier) const { return std::nullopt; }
  /// Makes a slab that is zeroed and populated.
  [[nodiscard]] Result<Slab> create_slab(Tier tier, Bytes size);
  /// Reopens DRAM that create_slab() of an earlier process made, by its descriptor, with its bytes;
  /// `zeroed`: without them. Errors: as create_slab(); InvalidArgument for a descriptor that is no
  /// such slab of this size; Unsupported where the backend cannot.
  [[nodiscard]] Result<Slab> reopen_slab(Bytes size, UniqueFd memory, bool zeroed);
  [[nodiscard]] virtual bool reopens_slabs() const { return false; }
  /// Makes HBM as create_slab() does, and copies into it what HBM of an earlier process, given by
  /// its descriptor, has in `extents`. Waits for the bytes. The earlier memory stays as it is: a
  /// process that maps it may go on, and may have written there during the copy. For a moment both
  /// take memory. Errors: as create_slab(); InvalidArgument for a descriptor that is no such slab
  /// of this size, and for extents beyond it; DeviceError where it cannot be read. After an error
  /// nothing has been made.
  [[nodiscard]] Result<Slab> copy_slab(Bytes size, const UniqueFd& memory,
                                       std::span<const SlabExtent> extents);
  [[nodiscard]] Status destroy_slab(SlabHandle handle);
  /// The same for a slab that peers may go on mapping, whatever they say. Where the backend can,
  /// the slab's bytes are gone and its memory is the machine's again at once, not with the last
  /// mapping.
  [[nodiscard]] Status discard_slab(SlabHandle handle);
  /// Lets copies touch the DRAM slab of another backend of this machine, too, until destroy_slab()
  /// ends that under the returned handle. The slab still belongs to the other backend, which keeps
  /// it that long. Errors: InvalidArgument for a slab of HBM; Unsupported where only the other
  /// device can reach the memory.
  [[nodiscard]] Result<SlabHandle> adopt_slab(const Slab& slab);
  /// A new close-on-exec descriptor through which a peer maps the slab. Possession of it is the
  /// right to the memory: send it only to a checked peer.
  [[nodiscard]] Result<UniqueFd> export_slab(SlabHandle handle);

  /// Shows the bytes of a live slab. DRAM, and all memory of the host backend, is shown in place.
  /// HBM of a GPU is first copied to the host, past the copy queues, in pieces that hold up nobody
  /// for long; the call waits for that. Writes that happen meanwhile are not ordered with it.
  /// Errors: InvalidArgument for bytes that are not within one slab; DeviceError; OutOfMemory where
  /// the host has no room for as many bytes. After an error `look` has not been called.
  [[nodiscard]] Status read_slab(std::uintptr_t address, Bytes length, const Look& look);

  /// Queues a batch; never blocks on the copy. Extents must lie within live slabs.
  [[nodiscard]] Status submit(CopyBatch batch);
  /// Appends finished batches, in the order of completion for each direction; returns at once.
  void poll(std::vector<Completion>& completed);
  /// Readable while poll() has something to hand out; for the daemon's event loop.
  [[nodiscard]] virtual int completion_fd() const = 0;
  /// Changes the simulated link rate (host backend, `link.bandwidth`); zero lifts the throttle.
  virtual void set_link_bandwidth(BytesPerSecond) {}
  /// None: HBM slabs are memfds that anyone may mmap. Set: they are CUDA VMM handles of this
  /// device, and a process that imports them must see the same one. DRAM slabs are memfds either
  /// way.
  [[nodiscard]] virtual std::optional<DeviceIdentity> identity() const { return std::nullopt; }
  /// Lets the copy queues themselves write fence words within [address, address + size), a mapped
  /// page shared with one client; the fence then comes as early as the device can write it. Without
  /// it the CPU writes fences there once it has seen the copies end. Host: nothing to do. Errors:
  /// InvalidArgument for a range that is not whole pages or is already adopted.
  [[nodiscard]] virtual Status adopt_page(void* /*address*/, Bytes /*size*/) { return {}; }
  /// Ends the adoption and returns at once; unknown addresses are ignored. The page has to stay
  /// mapped until the device has let go of it, for which a driver may wait: `mapping` keeps it
  /// mapped, and is held until then. Call it after poll() has handed out the last batch with a
  /// fence in the page.
  virtual void release_page(void* /*address*/, const std::shared_ptr<const void>& /*mapping*/) {}
  /// Not ok once the device is lost: DeviceError with the cause. From then on every batch fails and
  /// no fence is written (only poison releases waiters, safety rule 2). Memory that a stray copy
  /// may still touch is kept until the process ends. Only a restart of kvd helps.
  [[nodiscard]] virtual Status health() const { return {}; }
  /// One word for metrics and logs: "host", "cuda".
  [[nodiscard]] virtual std::string kind() const = 0;
  [[nodiscard]] DeviceCounters counters() const;

 protected:
  DeviceBackend() = default;
  virtual Result<Slab> do_create_slab(Tier tier, Bytes size) = 0;
  virtual Result<Slab> do_reopen_slab(Bytes size, UniqueFd memory, bool zeroed);
  virtual Result<Slab> do_copy_slab(Bytes size, const UniqueFd& memory,
                                    std::span<const SlabExtent> extents) = 0;
  /// Precondition: the bytes belong to a live slab, which stays for the time of the call.
  virtual Status do_read_slab(std::uintptr_t address, Bytes length, const Look& look);
  virtual Status do_destroy_slab(SlabHandle handle) = 0;
  virtual Status do_discard_slab(SlabHandle handle) { return do_destroy_slab(handle); }
  virtual Result<UniqueFd> do_export_slab(SlabHandle handle) = 0;
  /// Makes memory that another backend obtained reachable for this one's copies.
  virtual Status do_adopt_slab(const Slab&) { return {}; }
  virtual Status do_submit(CopyBatch batch) = 0;
  virtual void do_poll(std::vector<Completion>& completed) = 0;
  /// The live slab that holds `address`. Precondition: there is one. Extents given to do_submit()
  /// meet it.
  [[nodiscard]] Slab slab_holding(std::uintptr_t address) const;

 private:
  struct LiveSlab {
    Slab slab;
    std::size_t uses = 0;  // by batches in flight, once for each extent end here, and readers
  };
  struct InFlight {
    Direction direction;
    std::vector<SlabHandle> touched;
  };

  Result<Slab> made(Tier tier, Result<Slab> slab);
  [[nodiscard]] Result<SlabHandle> slab_of(std::uintptr_t address, Bytes length) const;
  [[nodiscard]] Status check_extent(const CopyExtent& extent,
                                    std::vector<SlabHandle>& touched) const;
  [[nodiscard]] Result<InFlight> check(const CopyBatch& batch) const;
  [[nodiscard]] Status check_size(Tier tier, Bytes size) const;
  void release(const std::vector<SlabHandle>& touched);
  Status forget(SlabHandle handle);
  void settle(const Completion& completion);

  std::uint64_t last_adopted_ = 0;
  mutable std::mutex mutex_;  // guards everything below; never held while the device works
  std::unordered_map<SlabHandle, LiveSlab> slabs_;
  std::map<std::uintptr_t, SlabHandle> by_address_;
  std::unordered_map<Ticket, InFlight> in_flight_;
  DeviceCounters counters_;
};

}  // namespace kvd::kernels
