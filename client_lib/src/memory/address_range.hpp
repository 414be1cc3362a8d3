#pragma once

#include <cstddef>

#include "client_lib/src/memory/slab_memory.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/unique_fd.hpp"
#include "ipc/vocabulary/units.hpp"

namespace kvd::client {

/// A range for slabs that are memfds. What is mapped there is absent in a forked child and in core
/// dumps (safety rule 9).
/// Owner:   whoever holds it; not thread-safe
/// Errors:  OutOfMemory when the kernel refuses, with the limit to look at
class AddressRange final : public SlabRange {
 public:
  /// Reserves `size` bytes at a multiple of `alignment`, both whole pages, backed by nothing yet.
  static Result<AddressRange> reserve(Bytes size, Bytes alignment);

  AddressRange() = default;
  AddressRange(AddressRange&& other) noexcept;
  AddressRange& operator=(AddressRange&& other) noexcept;
  AddressRange(const AddressRange&) = delete;
  AddressRange& operator=(const AddressRange&) = delete;
  ~AddressRange() override;

  /// Maps the first `size` bytes of the file at `offset` of the range, to read and write; the fd
  /// may be closed after.
  Status map(Bytes offset, Bytes size, const UniqueFd& file) override;
  Status map_from(Bytes offset, Bytes size, const SlabRange& from, Bytes from_offset) override;
  Status unmap(Bytes offset, Bytes size) override;
  Status map_own(Bytes offset, Bytes size) override;
  bool forsake() override;

  [[nodiscard]] std::byte* data() const override { return data_; }
  [[nodiscard]] Bytes size() const override { return size_; }

 private:
  AddressRange(std::byte* data, Bytes size) : data_(data), size_(size) {}
  [[nodiscard]] Status check_inside(Bytes offset, Bytes size) const;
  void release() noexcept;

  std::byte* data_ = nullptr;
  Bytes size_;
};

}  // namespace kvd::client
