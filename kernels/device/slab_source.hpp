#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/unique_fd.hpp"
#include "kernels/device/slab_book.hpp"

namespace kvd::kernels {

/// Identifies the GPU that has the HBM slabs by what both sides of a socket can compare: ordinals
/// differ between processes and containers, the UUID does not (for a MIG device it is that of the
/// instance).
struct DeviceIdentity {
  std::array<std::uint8_t, 16> uuid{};
  std::string name;
  friend bool operator==(const DeviceIdentity&, const DeviceIdentity&) = default;
};

/// Obtains memory that other processes can map. Public functions check and count; the virtual ones
/// below them do the work.
/// Source, owner, errors: as DeviceBackend.
class SlabSource {
 public:
  virtual ~SlabSource() = default;
  SlabSource(const SlabSource&) = delete;
  SlabSource& operator=(const SlabSource&) = delete;

  /// Slab sizes of `tier` must be multiples of this.
  [[nodiscard]] virtual Bytes granularity(Tier tier) const = 0;
  /// All the memory that exists for the tier; none: it is the machine's.
  [[nodiscard]] virtual std::optional<Bytes> memory(Tier) const { return std::nullopt; }
  /// Makes a slab that is zeroed and populated.
  [[nodiscard]] Result<Slab> create_slab(Tier tier, Bytes size);
  /// Reopens what create_slab() of an earlier process made, by its descriptor, with its bytes;
  /// `zeroed`: without them. Errors: as create_slab(); InvalidArgument for a descriptor that is no
  /// such slab of this size; Unsupported where the backend cannot.
  [[nodiscard]] Result<Slab> reopen_slab(Tier tier, Bytes size, UniqueFd memory, bool zeroed);
  [[nodiscard]] virtual bool reopens_slabs() const { return false; }
  /// Makes HBM as create_slab() does, and copies into it what HBM of an earlier process, given by
  /// its descriptor, has in `extents`. Waits for the bytes. The earlier memory stays as it is: a
  /// process that maps it may go on, and may have written there during the copy. For a moment both
  /// take memory. Errors: as create_slab(); InvalidArgument where the descriptor is no such slab of
  /// this size, or an extent ends beyond it; DeviceError where the earlier memory cannot be read.
  /// After an error nothing has been made.
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
  /// None: HBM slabs are memfds that anyone may mmap. Set: they are CUDA VMM handles of this
  /// device, and a process that imports them must see the same one. DRAM slabs are memfds either
  /// way.
  [[nodiscard]] virtual std::optional<DeviceIdentity> identity() const { return std::nullopt; }

 protected:
  SlabSource() = default;
  virtual Result<Slab> do_create_slab(Tier tier, Bytes size) = 0;
  virtual Result<Slab> do_reopen_slab(Tier tier, Bytes size, UniqueFd memory, bool zeroed);
  virtual Result<Slab> do_copy_slab(Bytes size, const UniqueFd& memory,
                                    std::span<const SlabExtent> extents) = 0;
  /// Precondition: the bytes belong to a live slab, which stays for the time of the call.
  virtual Status do_read_slab(std::uintptr_t address, Bytes length, const Look& look);
  virtual Status do_destroy_slab(SlabHandle handle) = 0;
  virtual Status do_discard_slab(SlabHandle handle) { return do_destroy_slab(handle); }
  virtual Result<UniqueFd> do_export_slab(SlabHandle handle) = 0;
  /// Makes memory that another backend obtained reachable for this one's copies.
  virtual Status do_adopt_slab(const Slab&) { return {}; }
  [[nodiscard]] SlabBook& book() { return book_; }
  [[nodiscard]] const SlabBook& book() const { return book_; }

 private:
  [[nodiscard]] Status check_size(Tier tier, Bytes size) const;

  SlabBook book_;
};

}  // namespace kvd::kernels
