#include "kernels/device/cuda/copies/extent_cursor.hpp"

#include <gtest/gtest.h>

#include <random>

namespace kvd::kernels::cuda {
namespace {

constexpr std::uintptr_t kTo = std::uintptr_t{1} << 40, kFrom = std::uintptr_t{1} << 41;

std::vector<CopyExtent> pieces_of(ExtentCursor& cursor, Bytes limit) {
  std::vector<CopyExtent> pieces;
  while (!cursor.done()) {
    const CopyList list = cursor.take(limit, limit);
    EXPECT_FALSE(list.empty()) << "a burst of its own takes at least a piece";
    if (list.empty()) break;
    for (std::size_t i = 0; i < list.lengths.size(); ++i) {
      pieces.push_back(
          {list.to[i], list.from[i], Bytes(static_cast<std::int64_t>(list.lengths[i]))});
    }
  }
  return pieces;
}

TEST(ExtentCursor, OneListTakesWhatFits) {
  ExtentCursor cursor({{kTo, kFrom, kMiB}, {kTo + kGiB.size(), kFrom + kGiB.size(), kMiB}});
  const CopyList list = cursor.take(kMiB * 4, kMiB * 4);
  EXPECT_TRUE(cursor.done());
  EXPECT_EQ(list.lengths, (std::vector<std::size_t>{kMiB.size(), kMiB.size()}));
  EXPECT_EQ(list.bytes, kMiB * 2);
}

TEST(ExtentCursor, AnExtentLargerThanABurstIsCut) {
  ExtentCursor cursor({{kTo, kFrom, kMiB * 10}});
  const auto pieces = pieces_of(cursor, kMiB * 4);
  const std::vector<CopyExtent> expected = {
      {kTo, kFrom, kMiB * 4},
      {kTo + (kMiB * 4).size(), kFrom + (kMiB * 4).size(), kMiB * 4},
      {kTo + (kMiB * 8).size(), kFrom + (kMiB * 8).size(), kMiB * 2}};
  EXPECT_EQ(pieces, expected);
}

TEST(ExtentCursor, ABurstIsOverdrawnRatherThanLeavingASmallPiece) {
  ExtentCursor cursor({{kTo, kFrom, kMiB * 4 + kKiB * 60}});
  EXPECT_EQ(cursor.take(kMiB * 4, kMiB * 4).bytes, kMiB * 4 + kKiB * 60);
  EXPECT_TRUE(cursor.done());
}

TEST(ExtentCursor, TheRestOfABurstTooSmallForAPieceStaysEmpty) {
  ExtentCursor cursor({{kTo, kFrom, kMiB * 4}});
  EXPECT_TRUE(cursor.take(kKiB * 63, kMiB * 4).empty());
  EXPECT_FALSE(cursor.done());
  EXPECT_EQ(cursor.take(kKiB * 64, kMiB * 4).bytes, kKiB * 64);
}

TEST(ExtentCursor, PiecesNeverSpanTwoRegistrations) {
  // The destination crosses a boundary 1 MiB after its start, the source 3 MiB after.
  const std::uintptr_t span = kRegistrationSpan.size();
  ExtentCursor cursor({{4 * span - kMiB.size(), 9 * span - (kMiB * 3).size(), kMiB * 8}});
  std::vector<std::size_t> lengths;
  for (const CopyExtent& piece : pieces_of(cursor, kMiB * 64)) {
    lengths.push_back(piece.length.size());
  }
  EXPECT_EQ(lengths, (std::vector<std::size_t>{kMiB.size(), (kMiB * 2).size(), (kMiB * 5).size()}));
}

TEST(ExtentCursor, TinyExtentsAreBoundedByCount) {
  std::vector<CopyExtent> tiny(10'000, CopyExtent{kTo, kFrom, Bytes(1)});
  ExtentCursor cursor(std::move(tiny));
  EXPECT_EQ(cursor.take(kMiB * 4, kMiB * 4).lengths.size(), ExtentCursor::kMostCopies);
}

CopyList rows(std::size_t count, std::size_t length, CUdeviceptr to_pitch, CUdeviceptr from_pitch) {
  CopyList list;
  for (std::size_t i = 0; i < count; ++i) {
    list.add(kTo + i * to_pitch, kFrom + i * from_pitch, length, 1);
  }
  return list;
}

TEST(CopyList, RowsAreEquallyLongAndEquallyFarApart) {
  constexpr std::size_t kLength = 65536;
  CopyList list = rows(32, kLength, kLength, kLength * 100);
  EXPECT_EQ(list.rows_from(0), 32u);
  EXPECT_EQ(list.rows_from(20), 12u);
  EXPECT_EQ(list.rows_from(30), 1u) << "two are no fewer calls";
  ++list.to[20];
  EXPECT_EQ(list.rows_from(0), 20u);
  list.from[10] -= kLength;
  EXPECT_EQ(list.rows_from(0), 10u);
  list.lengths[7] = kLength - 1;
  EXPECT_EQ(list.rows_from(0), 7u);
  list.slabs[5] = 2;
  EXPECT_EQ(list.rows_from(0), 5u);
  EXPECT_EQ(list.rows_from(4), 1u);
}

TEST(CopyList, PitchesHaveBounds) {
  constexpr CUdeviceptr kMost = (CUdeviceptr{1} << 31) - 1;
  EXPECT_EQ(rows(4, 512, 512, kMost).rows_from(0), 4u);
  EXPECT_EQ(rows(12, 512, 512, kGiB.size()).rows_from(0), 8u) << "those of one registration";
  EXPECT_EQ(rows(4, 512, 511, 512).rows_from(0), 1u) << "they would overlap";
  EXPECT_EQ(rows(4, 512, 512, 0).rows_from(0), 1u) << "zeros, as for scrubbing";
  EXPECT_EQ(rows(4, 512, 512, kMost + 1).rows_from(0), 1u);
  EXPECT_EQ(rows(4, 512, 512, CUdeviceptr{0} - 1024).rows_from(0), 1u) << "downwards";
  EXPECT_EQ(CopyList().rows_from(0), 1u);
}

TEST(ExtentCursor, NothingIsDoneAtOnce) {
  ExtentCursor cursor({});
  EXPECT_TRUE(cursor.done());
  EXPECT_TRUE(cursor.take(kMiB, kMiB).empty());
}

/// Adds the list's pieces to `joined`: a new extent where the last one has all its bytes.
void join(const CopyList& list, const std::vector<CopyExtent>& extents, Bytes span,
          std::vector<CopyExtent>& joined) {
  for (std::size_t i = 0; i < list.lengths.size(); ++i) {
    const std::uintptr_t to = list.to[i], from = list.from[i], length = list.lengths[i];
    ASSERT_EQ(to / span.size(), (to + length - 1) / span.size());
    ASSERT_EQ(from / span.size(), (from + length - 1) / span.size());
    const Bytes bytes(static_cast<std::int64_t>(length));
    CopyExtent* last = joined.empty() ? nullptr : &joined.back();
    if (last == nullptr || last->length == extents[joined.size() - 1].length) {
      joined.push_back({to, from, bytes});
      continue;
    }
    ASSERT_EQ(last->destination + last->length.size(), to);
    ASSERT_EQ(last->source + last->length.size(), from);
    last->length += bytes;
  }
}

// For any extents, the pieces are exactly their bytes, once each and in order, within all limits.
TEST(ExtentCursor, PiecesAreTheExtentsWithinTheLimits) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    const Bytes limit(static_cast<std::int64_t>(1 + random() % 300'000));
    const Bytes span = kKiB * static_cast<std::int64_t>(64 + random() % 512);
    std::vector<CopyExtent> extents;
    for (std::size_t i = 0, n = random() % 20; i < n; ++i) {
      extents.push_back({kTo + random() % (1u << 30), kFrom + random() % (1u << 30),
                         Bytes(static_cast<std::int64_t>(1 + random() % 1'000'000))});
    }
    ExtentCursor cursor(extents, span);
    std::vector<CopyExtent> joined;
    while (!cursor.done()) {
      const CopyList list = cursor.take(limit, limit);
      ASSERT_FALSE(list.empty());
      ASSERT_LE(list.bytes, limit + std::min(ExtentCursor::kSmallPiece, limit));
      ASSERT_NO_FATAL_FAILURE(join(list, extents, span, joined));
    }
    ASSERT_EQ(joined, extents);
  }
}

}  // namespace
}  // namespace kvd::kernels::cuda
