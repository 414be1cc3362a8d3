#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <thread>
#include <vector>

#include "ipc/shm/table_reader.hpp"
#include "ipc/shm/table_writer.hpp"

namespace kvd::shm {
namespace {

constexpr std::uint32_t kRows = 4;
constexpr std::uint32_t kSlots = 33;  // odd: the next buffer's rows must still be aligned

struct Table {
  TableWriter writer;
  TableReader reader;
};

Table make_table() {
  auto writer = TableWriter::create(kRows, kSlots);
  EXPECT_TRUE(writer.ok());
  auto reader = TableReader::map(writer->fd(), writer->size());
  EXPECT_TRUE(reader.ok());
  return {std::move(writer).value(), std::move(reader).value()};
}

/// Slots whose numbers tell version and place.
std::vector<SlotId> slots_of(std::uint64_t version, std::uint32_t count) {
  std::vector<SlotId> slots;
  for (std::uint32_t i = 0; i < count; ++i) {
    slots.emplace_back(static_cast<std::uint32_t>(version * 1000 + i));
  }
  return slots;
}

Status publish_one(Table& table, std::uint64_t version, std::uint64_t in_use) {
  const auto slots = slots_of(version, 6);
  const TableRowSource row{RequestId(version), Tokens(17), 3, 2, slots};
  return table.writer.publish(PlanVersion(version), std::span(&row, 1), PlanVersion(in_use));
}

TEST(Table, NothingIsPublishedAtFirst) {
  Table sut = make_table();
  EXPECT_EQ(sut.reader.current(), PlanVersion(0));
  EXPECT_FALSE(sut.reader.at(PlanVersion(0)).ok());
  EXPECT_EQ(sut.reader.at(PlanVersion(1)).error().code, ErrorCode::kNotFound);
}

TEST(Table, PublishedRowsAreRead) {
  Table sut = make_table();
  const auto first = slots_of(1, 6);
  const auto second = slots_of(2, 4);
  const std::array rows{TableRowSource{RequestId(11), Tokens(40), 3, 2, first},
                        TableRowSource{RequestId(12), Tokens(64), 4, 1, second}};
  ASSERT_TRUE(sut.writer.publish(PlanVersion(5), rows, PlanVersion(0)).ok());
  EXPECT_EQ(sut.reader.current(), PlanVersion(5));
  const auto view = sut.reader.at(PlanVersion(5));
  ASSERT_TRUE(view.ok());
  ASSERT_EQ(view->rows(), 2u);
  const auto row = view->row(0);
  ASSERT_TRUE(row.ok());
  EXPECT_EQ(row->request, RequestId(11));
  EXPECT_EQ(row->tokens, Tokens(40));
  EXPECT_EQ(row->slot(1, 2), SlotId(1005u));
  EXPECT_EQ(view->row(1)->slot(0, 3), SlotId(2003u));
  EXPECT_EQ(view->row(2).error().code, ErrorCode::kNotFound);
}

TEST(Table, EmptyVersionHasNoRows) {
  Table sut = make_table();
  ASSERT_TRUE(sut.writer.publish(PlanVersion(1), {}, PlanVersion(0)).ok());
  EXPECT_EQ(sut.reader.at(PlanVersion(1))->rows(), 0u);
}

TEST(Table, ThreeVersionsLiveSideBySide) {
  Table sut = make_table();
  for (std::uint64_t version = 1; version <= 3; ++version) {
    ASSERT_TRUE(publish_one(sut, version, 1).ok());
  }
  for (std::uint32_t version = 1; version <= 3; ++version) {
    EXPECT_EQ(sut.reader.at(PlanVersion(version))->row(0)->slots[0], SlotId(version * 1000));
  }
}

TEST(Table, BufferIsNotRewrittenBeforeTheSessionIsPastIt) {
  Table sut = make_table();
  for (std::uint64_t version = 1; version <= 3; ++version) {
    ASSERT_TRUE(publish_one(sut, version, 1).ok());
  }
  EXPECT_EQ(publish_one(sut, 4, 1).code(), ErrorCode::kWouldBlock);
  EXPECT_EQ(sut.writer.current(), PlanVersion(3));
  EXPECT_EQ(sut.reader.at(PlanVersion(1))->row(0)->slots[0], SlotId(1000u));
  EXPECT_TRUE(publish_one(sut, 4, 2).ok());
  EXPECT_EQ(sut.reader.at(PlanVersion(1)).error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(sut.reader.at(PlanVersion(2)).ok());
}

TEST(Table, VersionsMaySkipNumbersOfEitherParity) {
  Table sut = make_table();
  ASSERT_TRUE(publish_one(sut, 2, 0).ok());
  ASSERT_TRUE(publish_one(sut, 4, 2).ok());
  ASSERT_TRUE(publish_one(sut, 8, 4).ok());
  EXPECT_TRUE(sut.reader.at(PlanVersion(4)).ok());
  EXPECT_TRUE(sut.reader.at(PlanVersion(8)).ok());
}

TEST(Table, VersionsOnlyGrow) {
  Table sut = make_table();
  ASSERT_TRUE(publish_one(sut, 2, 0).ok());
  EXPECT_EQ(publish_one(sut, 2, 2).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(publish_one(sut, 1, 2).code(), ErrorCode::kInvalidArgument);
}

TEST(Table, TooMuchIsRefusedAndNothingChanges) {
  Table sut = make_table();
  ASSERT_TRUE(publish_one(sut, 1, 0).ok());
  const auto slots = slots_of(9, kSlots + 2);
  const TableRowSource wide{RequestId(1), Tokens(1), kSlots + 2, 1, slots};
  EXPECT_EQ(sut.writer.publish(PlanVersion(2), std::span(&wide, 1), PlanVersion(1)).code(),
            ErrorCode::kOutOfMemory);
  const std::vector<TableRowSource> many(kRows + 1);
  EXPECT_EQ(sut.writer.publish(PlanVersion(2), many, PlanVersion(1)).code(),
            ErrorCode::kOutOfMemory);
  const TableRowSource torn{RequestId(1), Tokens(1), 3, 3, std::span(slots).first(8)};
  EXPECT_EQ(sut.writer.publish(PlanVersion(2), std::span(&torn, 1), PlanVersion(1)).code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(sut.reader.current(), PlanVersion(1));
}

TEST(Table, FullBuffersDoNotTouchEachOther) {
  Table sut = make_table();
  for (std::uint64_t version = 1; version <= kTableBuffers; ++version) {
    const auto slots = slots_of(version, kSlots);
    std::vector<TableRowSource> rows(kRows);
    rows.back() = {RequestId(version), Tokens(1), kSlots, 1, slots};
    ASSERT_TRUE(sut.writer.publish(PlanVersion(version), rows, PlanVersion(0)).ok());
  }
  EXPECT_EQ(sut.reader.at(PlanVersion(1))->row(kRows - 1)->slot(0, kSlots - 1).value, 1032u);
  EXPECT_EQ(sut.reader.at(PlanVersion(2))->row(kRows - 1)->slot(0, kSlots - 1).value, 2032u);
  EXPECT_EQ(sut.reader.at(PlanVersion(3))->row(kRows - 1)->slot(0, kSlots - 1).value, 3032u);
}

TEST(Table, ImpossibleCapacitiesAreRefused) {
  EXPECT_FALSE(TableWriter::create(0, 1).ok());
  EXPECT_FALSE(TableWriter::create(1, 0xffffffff).ok());
}

TEST(Table, EngineCannotMapItForWriting) {
  Table sut = make_table();
  EXPECT_FALSE(SharedMapping::map(sut.writer.fd(), sut.writer.size(), Access::kReadWrite).ok());
}

/// A table memfd as a broken daemon might send it.
TEST(Table, ReaderRefusesWhatPointsOutside) {
  constexpr std::uint32_t kFar = 0x7ffffff8;
  for (const int field : {0, 1, 2, 3}) {
    const Bytes size(8192);
    const auto fd = create_memfd("broken", size);
    const auto mapping = SharedMapping::map(fd->get(), size, Access::kReadWrite);
    auto& header = *new (mapping->bytes().data()) TableHeader();
    auto& buffer = header.buffers[0];
    buffer.rows_offset = buffer.slots_offset = sizeof(TableHeader);
    buffer.rows = buffer.slots = 1;
    std::array{&buffer.rows_offset, &buffer.slots_offset, &buffer.rows, &buffer.slots}.at(
        static_cast<std::size_t>(field))[0] = kFar;
    buffer.version = 1;
    const auto reader = TableReader::map(fd->get(), size);
    ASSERT_TRUE(reader.ok());
    EXPECT_EQ(reader->at(PlanVersion(1)).error().code, ErrorCode::kInternal) << field;
  }
}

TEST(Table, RowsThatPointOutsideAreRefused) {
  const std::array<SlotId, 2> slots{};
  const std::array rows{TableRow{1, 1, 1, 2, 1, 0}, TableRow{1, 1, 0xffffffff, 1, 1, 0},
                        TableRow{1, 1, 0, 0xffffffff, 0xffffffff, 0}};
  const TableView view(rows, slots);
  for (std::uint32_t i = 0; i < view.rows(); ++i) {
    EXPECT_EQ(view.row(i).error().code, ErrorCode::kInternal) << i;
  }
}

TEST(Table, ForeignMemoryIsNoTable) {
  const auto fd = create_memfd("no-table", Bytes(8192));
  EXPECT_FALSE(TableReader::map(fd->get(), Bytes(8192)).ok());
  EXPECT_FALSE(TableReader::map(fd->get(), Bytes(64)).ok());
}

TEST(Table, ReaderInStepNeverSeesMixedVersions) {
  Table sut = make_table();
  constexpr std::uint64_t kLast = 3000;
  std::atomic<std::uint64_t> in_use{0};
  std::thread engine([&] {
    for (std::uint64_t version = 0; version < kLast;) {
      const PlanVersion newest = sut.reader.current();
      if (newest.value == version) {
        std::this_thread::yield();
        continue;
      }
      version = newest.value;
      in_use.store(version, std::memory_order_release);
      const auto view = sut.reader.at(newest);
      ASSERT_TRUE(view.ok()) << version;
      const auto row = view->row(0);
      ASSERT_EQ(row->request, RequestId(version));
      ASSERT_EQ(row->slots[5].value, version * 1000 + 5);
    }
  });
  for (std::uint64_t version = 1; version <= kLast;) {
    const auto published = publish_one(sut, version, in_use.load(std::memory_order_acquire));
    if (published.ok()) {
      ++version;
    } else {
      ASSERT_EQ(published.code(), ErrorCode::kWouldBlock);
      std::this_thread::yield();
    }
  }
  engine.join();
}

}  // namespace
}  // namespace kvd::shm
