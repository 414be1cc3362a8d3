#include "kvd/tiers/disk/files/checksum.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string_view>
#include <vector>

namespace kvd::disk {
namespace {

std::vector<std::byte> random_bytes(std::size_t size) {
  std::mt19937_64 random(size);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// RFC 3720, appendix B.4, and the check value of the catalogue of CRCs.
TEST(Checksum, IsCrc32c) {
  std::vector<std::byte> bytes(32);
  EXPECT_EQ(crc32c(bytes), 0x8a9136aau);
  for (std::byte& byte : bytes) byte = std::byte{0xff};
  EXPECT_EQ(crc32c(bytes), 0x62a8ab43u);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
  EXPECT_EQ(crc32c(bytes), 0x46dd794eu);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(31 - i);
  EXPECT_EQ(crc32c(bytes), 0x113fdb5cu);
  EXPECT_EQ(crc32c(std::as_bytes(std::span(std::string_view("123456789")))), 0xe3069283u);
  EXPECT_EQ(crc32c({}), 0u);
}

TEST(Checksum, OfTheInstructionIsThatOfTheTable) {
  for (std::size_t size = 0; size < 200; ++size) {
    const auto bytes = random_bytes(size);
    for (std::size_t skip = 0; skip < std::min<std::size_t>(size, 9); ++skip) {
      const auto part = std::span(bytes).subspan(skip);
      EXPECT_EQ(crc32c(part), crc32c_by_table(part)) << size << " bytes from " << skip;
      EXPECT_EQ(group_sum(part), group_sum_by_table(part)) << size << " bytes from " << skip;
    }
  }
}

TEST(Checksum, OfAGroupIsThatOfItsThirds) {
  const auto bytes = random_bytes(1000);  // 1000 / 24 * 8 = 328
  const std::span all(bytes);
  const GroupSum expected = {crc32c(all.first(328)), crc32c(all.subspan(328, 328)),
                             crc32c(all.subspan(656))};
  EXPECT_EQ(group_sum(bytes), expected);
}

TEST(Checksum, OfAGroupSeesEveryBit) {
  auto bytes = random_bytes(100);
  const GroupSum before = group_sum(bytes);
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_NE(group_sum(bytes), before) << "bit " << bit;
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  }
}

}  // namespace
}  // namespace kvd::disk
