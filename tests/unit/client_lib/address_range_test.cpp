#include "client_lib/src/memory/address_range.hpp"

#include <gtest/gtest.h>

#include <cstdint>

#include "ipc/shm/sealed_memfd.hpp"

namespace kvd::client {
namespace {

constexpr Bytes kPiece{65536};

UniqueFd file_of(Bytes size) { return std::move(shm::create_memfd("test", size)).value(); }

TEST(AddressRangeTest, AlignsToAnyWholePages) {
  for (const std::int64_t pages : {1, 3, 16, 48}) {
    const Bytes alignment(pages * 4096);
    const auto range = AddressRange::reserve(alignment * 2, alignment);
    ASSERT_TRUE(range.ok());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(range->data()) % alignment.size(), 0u);
    EXPECT_EQ(range->size(), alignment * 2);
  }
}

TEST(AddressRangeTest, RefusesWhatIsNotWholePages) {
  EXPECT_FALSE(AddressRange::reserve(Bytes(100), Bytes(4096)).ok());
  EXPECT_FALSE(AddressRange::reserve(Bytes(4096), Bytes(100)).ok());
  EXPECT_FALSE(AddressRange::reserve(Bytes(0), Bytes(4096)).ok());
  EXPECT_FALSE(AddressRange::reserve(Bytes(INT64_MAX / 4096 * 4096), Bytes(4096)).ok());
}

TEST(AddressRangeTest, MapsFilesSideBySide) {
  auto range = std::move(AddressRange::reserve(kPiece * 2, kPiece)).value();
  const UniqueFd first = file_of(kPiece), second = file_of(kPiece);
  ASSERT_TRUE(range.map(kPiece, kPiece, second).ok());
  ASSERT_TRUE(range.map(Bytes(0), kPiece, first).ok());
  const auto view =
      std::move(shm::SharedMapping::map(second.get(), kPiece, shm::Access::kReadOnly)).value();
  range.data()[kPiece.value] = std::byte{9};
  EXPECT_EQ(view.bytes()[0], std::byte{9});
}

TEST(AddressRangeTest, RefusesMappingsOutsideItself) {
  auto range = std::move(AddressRange::reserve(kPiece, kPiece)).value();
  const UniqueFd file = file_of(kPiece * 2);
  EXPECT_FALSE(range.map(Bytes(4096), kPiece, file).ok());
  EXPECT_FALSE(range.map(Bytes(0), kPiece * 2, file).ok());
  EXPECT_FALSE(range.map(Bytes(-4096), Bytes(4096), file).ok());
}

TEST(AddressRangeTest, RefusesAFileTooShortToTouch) {
  auto range = std::move(AddressRange::reserve(kPiece, kPiece)).value();
  EXPECT_EQ(range.map(Bytes(0), kPiece, file_of(Bytes(4096))).code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvd::client
