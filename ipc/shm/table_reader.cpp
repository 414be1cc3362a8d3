#include "ipc/shm/table_reader.hpp"

#include <string>

namespace kvd::shm {
namespace {

/// Whether `count` entries of `each` bytes from `offset` on lie inside `total` bytes.
bool inside(std::size_t offset, std::size_t count, std::size_t each, std::size_t total) {
  return offset <= total && count <= (total - offset) / each &&
         offset % alignof(std::uint32_t) == 0;
}

Error broken() { return make_error(ErrorCode::kInternal, "the block table points outside itself"); }

}  // namespace

Result<TableRowView> TableView::row(std::uint32_t index) const {
  if (index >= rows_.size()) {
    return make_error(ErrorCode::kNotFound, "the block table has no row " + std::to_string(index));
  }
  const TableRow row = rows_[index];
  const std::uint64_t slots = std::uint64_t{row.blocks} * row.groups;
  if (row.first > slots_.size() || slots > slots_.size() - row.first) return broken();
  return TableRowView{RequestId(row.request), Tokens(static_cast<std::int64_t>(row.tokens)),
                      row.blocks, row.groups, slots_.subspan(row.first, slots)};
}

Result<TableReader> TableReader::map(int fd, Bytes size) {
  if (size.value < static_cast<std::int64_t>(sizeof(TableHeader)) || size.size() > kMaxTableBytes) {
    return make_error(ErrorCode::kInvalidArgument, "impossible size of a block table");
  }
  KVD_TRY(expect_fixed_size(fd, size));
  KVD_ASSIGN_OR_RETURN(SharedMapping mapping, SharedMapping::map(fd, size, Access::kReadOnly));
  TableReader reader(std::move(mapping));
  if (reader.header().magic != kTableMagic || reader.header().layout_version != kLayoutVersion) {
    return make_error(ErrorCode::kInvalidArgument, "this is no block table of a known layout");
  }
  return reader;
}

PlanVersion TableReader::current() const {
  return PlanVersion(header().current.load(std::memory_order_acquire));
}

Result<TableView> TableReader::at(PlanVersion version) const {
  for (const TableBuffer& buffer : header().buffers) {
    if (version && buffer.version.load(std::memory_order_acquire) == version.value) {
      return view(buffer);
    }
  }
  return make_error(ErrorCode::kNotFound,
                    "version " + std::to_string(version.value) +
                        " of the block table is not published (any more); step first");
}

Result<TableView> TableReader::view(const TableBuffer& buffer) const {
  const std::span<const std::byte> bytes = mapping_.bytes();
  if (!inside(buffer.rows_offset, buffer.rows, sizeof(TableRow), bytes.size()) ||
      buffer.rows_offset % alignof(TableRow) != 0 ||
      !inside(buffer.slots_offset, buffer.slots, sizeof(SlotId), bytes.size())) {
    return broken();
  }
  static_assert(sizeof(SlotId) == sizeof(std::uint32_t));
  return TableView(
      {reinterpret_cast<const TableRow*>(bytes.data() + buffer.rows_offset), buffer.rows},
      {reinterpret_cast<const SlotId*>(bytes.data() + buffer.slots_offset), buffer.slots});
}

}  // namespace kvd::shm
