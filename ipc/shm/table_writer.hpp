#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "ipc/shm/layout.hpp"
#include "ipc/shm/sealed_memfd.hpp"
#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/unique_fd.hpp"
#include "ipc/vocabulary/units.hpp"

namespace kvd::shm {

/// One request's row to publish; slots in the order [group][block].
struct TableRowSource {
  RequestId request;
  Tokens tokens;
  std::uint32_t blocks = 0;
  std::uint32_t groups = 0;
  std::span<const SlotId> slots;
};

/// The daemon's end of a session's block tables: immutable versions in a few buffers. Nobody else
/// can ever map the memfd for writing.
/// Owner: control thread.
class TableWriter {
 public:
  /// Errors: InvalidArgument for no rows or a capacity of kMaxTableBytes, OutOfMemory, Unavailable.
  static Result<TableWriter> create(std::uint32_t max_rows, std::uint32_t max_slots);

  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] Bytes size() const;
  [[nodiscard]] PlanVersion current() const { return current_; }

  /// Makes the rows visible as `version`, which must be higher than any before. `in_use` is the
  /// oldest version the session may still read (its using word): a buffer is rewritten only once
  /// that is past what the buffer holds. A hostile `in_use` harms only its session.
  /// Errors: WouldBlock when the session still reads the oldest buffer: publish again after its
  /// next boundary. OutOfMemory when the rows exceed the capacity. InvalidArgument for a version
  /// that does not grow or a row whose slots are not groups * blocks.
  Status publish(PlanVersion version, std::span<const TableRowSource> rows, PlanVersion in_use);

 private:
  TableWriter(UniqueFd fd, SharedMapping mapping, std::uint32_t max_rows, std::uint32_t max_slots)
      : fd_(std::move(fd)),
        mapping_(std::move(mapping)),
        max_rows_(max_rows),
        max_slots_(max_slots) {}
  [[nodiscard]] TableHeader& header() const {
    return *reinterpret_cast<TableHeader*>(mapping_.bytes().data());
  }
  void write(TableBuffer& buffer, std::span<const TableRowSource> rows) const;

  UniqueFd fd_;
  SharedMapping mapping_;
  std::uint32_t max_rows_ = 0;
  std::uint32_t max_slots_ = 0;
  PlanVersion current_;
  std::size_t newest_ = 0;  ///< index of the buffer that holds current_
};

}  // namespace kvd::shm
