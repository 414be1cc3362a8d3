#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "ipc/shm/layout.hpp"
#include "ipc/shm/sealed_memfd.hpp"
#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"

namespace kvd::shm {

/// One row of a block table; slots in the order [group][block].
struct TableRowView {
  RequestId request;
  Tokens tokens;
  std::uint32_t blocks = 0;
  std::uint32_t groups = 0;
  std::span<const SlotId> slots;

  /// Precondition: group < groups, block < blocks.
  [[nodiscard]] SlotId slot(std::uint32_t group, std::uint32_t block) const {
    return slots[std::size_t{group} * blocks + block];
  }
};

/// One published version, seen in place.
/// Owner: views the reader's mapping; valid while the session's using word names its version.
class TableView {
 public:
  TableView(std::span<const TableRow> rows, std::span<const SlotId> slots)
      : rows_(rows), slots_(slots) {}

  [[nodiscard]] std::uint32_t rows() const { return static_cast<std::uint32_t>(rows_.size()); }
  /// Errors: NotFound for a row the version does not have, Internal for one that points outside.
  [[nodiscard]] Result<TableRowView> row(std::uint32_t index) const;

 private:
  std::span<const TableRow> rows_;
  std::span<const SlotId> slots_;
};

/// The engine's end of its block tables, mapped read-only.
/// Owner: any thread.
class TableReader {
 public:
  /// Checks and maps what came with Welcome; the fd may be closed afterwards.
  /// Errors: InvalidArgument when it is no table of a layout this side knows.
  static Result<TableReader> map(int fd, Bytes size);

  [[nodiscard]] PlanVersion current() const;

  /// The version a step reply named. Store the session's using word before.
  /// Errors: NotFound when no buffer holds it (any more).
  [[nodiscard]] Result<TableView> at(PlanVersion version) const;

 private:
  explicit TableReader(SharedMapping mapping) : mapping_(std::move(mapping)) {}
  [[nodiscard]] const TableHeader& header() const {
    return *reinterpret_cast<const TableHeader*>(mapping_.bytes().data());
  }
  [[nodiscard]] Result<TableView> view(const TableBuffer& buffer) const;

  SharedMapping mapping_;
};

}  // namespace kvd::shm
