#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "ipc/vocabulary/units.hpp"
#include "kernels/copy/copy_extent.hpp"
#include "kernels/device/cuda/memory/host_registration.hpp"

namespace kvd::kernels::cuda {

/// The copies of one driver call, in the form that the call takes.
struct CopyList {
  std::vector<CUdeviceptr> to;
  std::vector<CUdeviceptr> from;
  std::vector<std::size_t> lengths;
  Bytes bytes;
  /// Neighbouring copies with one number have their ends in the same two slabs. Empty: no copies
  /// form rows.
  std::vector<std::uint32_t> slabs = {};

  [[nodiscard]] bool empty() const { return lengths.empty(); }
  void add(CUdeviceptr to, CUdeviceptr from, std::size_t length, std::uint32_t slabs);
  /// How many copies from `first` on form one copy of rows: they have one length and equal
  /// distances at both ends, and lie within one slab and one registration each. The answer is one
  /// where there are too few for that.
  [[nodiscard]] std::size_t rows_from(std::size_t first) const;
};

/// A batch's extents, handed out burst by burst. Pieces never span two registrations, and are not
/// cut small to fit a burst: copy engines are slow below 64 KiB.
class ExtentCursor {
 public:
  /// The most copies in one list. It bounds what a batch of tiny extents costs in one call.
  static constexpr std::size_t kMostCopies = 4096;
  static constexpr Bytes kSmallPiece = kKiB * 64;

  /// `slabs`: as in CopyList, a number for each extent; empty: no two of them form rows.
  explicit ExtentCursor(std::vector<CopyExtent> extents, Bytes span = kRegistrationSpan,
                        std::vector<std::uint32_t> slabs = {})
      : extents_(std::move(extents)), slabs_(std::move(slabs)), span_(span) {}

  [[nodiscard]] bool done() const { return next_ == extents_.size(); }
  /// The next pieces for a burst of `burst` bytes that has room for `room` more: as many bytes, and
  /// beyond them less than a small piece. Empty when done, or when the burst holds something and
  /// the room is not worth a piece.
  [[nodiscard]] CopyList take(Bytes room, Bytes burst);

 private:
  [[nodiscard]] Bytes piece(Bytes room, Bytes small, bool started) const;

  std::vector<CopyExtent> extents_;
  std::vector<std::uint32_t> slabs_;
  Bytes span_;
  std::size_t next_ = 0;  // the current extent
  Bytes taken_;           // bytes already taken of it
};

}  // namespace kvd::kernels::cuda
