#include "ipc/shm/table_writer.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>

namespace kvd::shm {
namespace {

/// Fixed for the memfd's life: rows then slots of buffer 0, the same of the others.
void lay_out(TableHeader& header, std::uint32_t max_rows, std::uint32_t max_slots) {
  header.max_rows = max_rows;
  header.max_slots = max_slots;
  std::size_t at = sizeof(TableHeader);
  for (TableBuffer& buffer : header.buffers) {
    buffer.rows_offset = static_cast<std::uint32_t>(at);
    at += std::size_t{max_rows} * sizeof(TableRow);
    buffer.slots_offset = static_cast<std::uint32_t>(at);
    at += std::size_t{max_slots} * sizeof(std::uint32_t);
  }
}

bool is_whole(const TableRowSource& row) {
  return row.slots.size() == std::size_t{row.groups} * row.blocks;
}

}  // namespace

Result<TableWriter> TableWriter::create(std::uint32_t max_rows, std::uint32_t max_slots) {
  if (max_rows == 0 || table_bytes(max_rows, max_slots) >= kMaxTableBytes) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "a block table is not within 1 row and 1 GiB; change the requests per engine");
  }
  max_slots += max_slots % 2;  // so that the rows of the next buffer are aligned
  const std::size_t bytes = table_bytes(max_rows, max_slots);
  const Bytes size(static_cast<std::int64_t>(bytes));
  KVD_ASSIGN_OR_RETURN(UniqueFd fd, create_memfd("kvd-table", size));
  KVD_ASSIGN_OR_RETURN(SharedMapping mapping,
                       SharedMapping::map(fd.get(), size, Access::kReadWrite));
  KVD_TRY(close_seals(fd.get(), Writers::kMappedSoFar));
  lay_out(*new (mapping.bytes().data()) TableHeader(), max_rows, max_slots);
  return TableWriter(std::move(fd), std::move(mapping), max_rows, max_slots);
}

Bytes TableWriter::size() const {
  return Bytes(static_cast<std::int64_t>(mapping_.bytes().size()));
}

Status TableWriter::publish(PlanVersion version, std::span<const TableRowSource> rows,
                            PlanVersion in_use) {
  if (version <= current_) {
    return make_error(ErrorCode::kInvalidArgument, "table versions only grow");
  }
  std::size_t slots = 0;
  for (const TableRowSource& row : rows) {
    if (!is_whole(row)) {
      return make_error(ErrorCode::kInvalidArgument, "a table row without groups * blocks slots");
    }
    slots += row.slots.size();
  }
  if (rows.size() > max_rows_ || slots > max_slots_) {
    return make_error(ErrorCode::kOutOfMemory, "the session's block table is full");
  }
  const std::size_t oldest = (newest_ + 1) % kTableBuffers;
  TableBuffer& buffer = header().buffers[oldest];
  const PlanVersion held(buffer.version.load(std::memory_order_relaxed));
  if (held && in_use <= held) {
    return make_error(ErrorCode::kWouldBlock, "the engine still reads the oldest block table");
  }
  write(buffer, rows);
  buffer.version.store(version.value, std::memory_order_release);
  header().current.store(version.value, std::memory_order_release);
  newest_ = oldest;
  current_ = version;
  return {};
}

void TableWriter::write(TableBuffer& buffer, std::span<const TableRowSource> rows) const {
  // A reader that comes too late finds no version rather than foreign rows under the old one.
  buffer.version.exchange(0, std::memory_order_acq_rel);
  auto* row_at = reinterpret_cast<TableRow*>(mapping_.bytes().data() + buffer.rows_offset);
  auto* slots = reinterpret_cast<SlotId*>(mapping_.bytes().data() + buffer.slots_offset);
  std::uint32_t first = 0;
  for (const TableRowSource& row : rows) {
    *row_at++ = {row.request.value,
                 static_cast<std::uint64_t>(row.tokens.value),
                 first,
                 row.blocks,
                 row.groups,
                 0};
    std::copy(row.slots.begin(), row.slots.end(), slots + first);
    first += static_cast<std::uint32_t>(row.slots.size());
  }
  buffer.rows = static_cast<std::uint32_t>(rows.size());
  buffer.slots = first;
}

}  // namespace kvd::shm
