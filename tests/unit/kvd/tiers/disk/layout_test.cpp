#include "kvd/tiers/disk/files/layout.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace kvd::disk {
namespace {

Digest digest_from(std::uint8_t first) {
  Digest digest;
  for (std::size_t i = 0; i < digest.size(); ++i) {
    digest[i] = static_cast<std::uint8_t>(first + i);
  }
  return digest;
}

ClassShape shape_of(std::uint32_t groups, Bytes group_bytes) {
  return {digest_from(0x10), groups, group_bytes};
}

Layout layout_of(std::uint32_t groups, Bytes group_bytes, Bytes segment = kMiB) {
  return *Layout::make(shape_of(groups, group_bytes), segment);
}

SlotHeader header_of(const Layout& layout, DiskSlot slot) {
  SlotHeader header{
      slot, SlotGeneration(0x0102030405060708), {digest_from(0x40), digest_from(0x80)}, {}};
  for (std::uint32_t group = 0; group < layout.shape().groups; ++group) {
    header.sums.push_back({0xa0 + group, 0xb0 + group, 0xc0 + group});
  }
  return header;
}

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", std::to_integer<unsigned>(byte));
    text += two;
  }
  return text;
}

std::string zeros(std::size_t bytes) {
  std::string text(2 * bytes, '0');
  return text;
}

const std::string kFingerprintHex =
    "101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f";

// The sums at the ends were computed by another program.
TEST(Layout, HeaderBytesAreThoseOfTheDocument) {
  const Layout layout = layout_of(2, Bytes(5000));  // 20 KiB a slot, 51 in a segment
  const Sector sector = encode_header(layout, header_of(layout, DiskSlot(51 + 3)));
  EXPECT_EQ(hex(sector),
            "4b5644424c4f434b"
            "01000000"
            "02000000"
            "8813000000000000"
            "0807060504030201"
            "01000000"
            "03000000" +
                zeros(24) + kFingerprintHex +
                "404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f"
                "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f"
                "a0000000b0000000c0000000"
                "a1000000b1000000c1000000" +
                zeros(4092 - 160 - 24) + "2fe39e18");
}

TEST(Layout, SuperblockBytesAreThoseOfTheDocument) {
  const Sector sector = encode_superblock(layout_of(2, Bytes(5000)), 7);
  EXPECT_EQ(hex(sector),
            "4b56445345474d54"
            "01000000"
            "02000000"
            "8813000000000000"
            "0000100000000000"
            "07000000" +
                zeros(28) + kFingerprintHex + zeros(4092 - 96) + "3e3051c4");
}

TEST(Layout, GroupsOfAnySizeStartAtASector) {
  const Layout layout = layout_of(3, Bytes(5000), kMiB);
  EXPECT_EQ(layout.slot_bytes(), Bytes(4096 + 3 * 8192));
  EXPECT_EQ(layout.slots_per_segment(), 36u);  // (1 MiB - 4 KiB) / 28 KiB
  EXPECT_FALSE(layout.fills_sectors());
  const DiskSlot slot(36 + 2);
  EXPECT_EQ(layout.segment(slot), 1u);
  EXPECT_EQ(layout.position(slot), 2u);
  EXPECT_EQ(layout.header_offset(slot), Bytes(4096 + 2 * 28672));
  EXPECT_EQ(layout.group_offset(slot, 2), Bytes(4096 + 2 * 28672 + 4096 + 2 * 8192));
}

TEST(Layout, GroupsOfWholeSectorsFillThem) {
  EXPECT_TRUE(layout_of(3, Bytes(8192)).fills_sectors());
}

TEST(Layout, RefusesWhatCannotBe) {
  const auto code = [](std::uint32_t groups, Bytes bytes, Bytes segment) {
    const auto made = Layout::make(shape_of(groups, bytes), segment);
    return made.ok() ? ErrorCode::kOk : made.error().code;
  };
  EXPECT_EQ(code(1, Bytes(1), 3 * kSector), ErrorCode::kOk);
  EXPECT_EQ(code(kMaxGroups, Bytes(1), kGiB), ErrorCode::kOk);
  EXPECT_EQ(code(0, kSector, kMiB), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(kMaxGroups + 1, Bytes(1), kGiB), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(1, Bytes(0), kMiB), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(1, kMaxGroupBytes + Bytes(1), kGiB), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(1, kSector, 2 * kSector), ErrorCode::kInvalidArgument) << "no room for a slot";
  EXPECT_EQ(code(1, kSector, kMiB + Bytes(1)), ErrorCode::kInvalidArgument) << "no whole sectors";
  EXPECT_EQ(code(1, kSector, Bytes(-4096)), ErrorCode::kInvalidArgument);
}

class LayoutHeader : public ::testing::Test {
 protected:
  Fault decode(const Sector& sector) {
    return decode_header(layout_, DiskSlot(5), std::span(sector), decoded_);
  }
  /// A header whose byte at the offset is another, with the sum that fits it.
  Fault decode_with(std::size_t at, unsigned value) {
    Sector sector = encode_header(layout_, header_);
    sector[at] = static_cast<std::byte>(value);
    const std::uint32_t sum = crc32c(std::span(sector).first<4092>());
    std::memcpy(sector.data() + 4092, &sum, sizeof sum);
    return decode(sector);
  }

  Layout layout_ = layout_of(kMaxGroups, Bytes(4096), 4 * kGiB);
  SlotHeader header_ = header_of(layout_, DiskSlot(5));
  SlotHeader decoded_;
};

TEST_F(LayoutHeader, ComesBackAsItWas) {
  ASSERT_EQ(decode(encode_header(layout_, header_)), Fault::kNone);
  EXPECT_EQ(decoded_.slot, header_.slot);
  EXPECT_EQ(decoded_.generation, header_.generation);
  EXPECT_EQ(decoded_.key, header_.key);
  EXPECT_EQ(decoded_.sums, header_.sums);
}

TEST_F(LayoutHeader, OfASlotNeverWrittenIsEmpty) { EXPECT_EQ(decode(Sector{}), Fault::kEmpty); }

TEST_F(LayoutHeader, WithAnyByteChangedIsRefused) {
  const Sector good = encode_header(layout_, header_);
  for (std::size_t at = 0; at < good.size(); ++at) {
    Sector bad = good;
    bad[at] ^= std::byte{0x20};
    EXPECT_NE(decode(bad), Fault::kNone) << "byte " << at;
  }
}

TEST_F(LayoutHeader, SaysWhatDoesNotFit) {
  EXPECT_EQ(decode_with(0, 'X'), Fault::kCorruptHeader);
  EXPECT_EQ(decode_with(8, 2), Fault::kOtherVersion);
  EXPECT_EQ(decode_with(12, 1), Fault::kOtherClass);
  EXPECT_EQ(decode_with(17, 0x20), Fault::kOtherClass);
  EXPECT_EQ(decode_with(64, 0), Fault::kOtherClass);
  EXPECT_EQ(decode_with(95, 0), Fault::kOtherClass);
  EXPECT_EQ(decode_with(32, 1), Fault::kMisplaced);
  EXPECT_EQ(decode_with(36, 6), Fault::kMisplaced);
}

TEST(Layout, SuperblockSaysWhatDoesNotFit) {
  const Layout layout = layout_of(2, Bytes(8192));
  const Sector good = encode_superblock(layout, 1);
  Bytes size;
  const auto decode = [&](const Layout& wanted, std::uint32_t segment, const Sector& sector) {
    return decode_superblock(wanted.shape(), segment, std::span(sector), size);
  };
  EXPECT_EQ(decode(layout, 1, good), Fault::kNone);
  EXPECT_EQ(size, layout.segment_bytes());
  EXPECT_EQ(decode(layout, 2, good), Fault::kMisplaced);
  EXPECT_EQ(decode(layout, 1, Sector{}), Fault::kEmpty);
  EXPECT_EQ(decode(layout_of(3, Bytes(8192)), 1, good), Fault::kOtherClass);
  EXPECT_EQ(decode(layout, 0, encode_header(layout, header_of(layout, DiskSlot(0)))),
            Fault::kCorruptHeader);
  Sector torn = good;
  torn[100] = std::byte{1};
  EXPECT_EQ(decode(layout, 1, torn), Fault::kCorruptHeader);
}

TEST(Fault, HasANameAndACode) {
  EXPECT_EQ(name(Fault::kNone), "none");
  EXPECT_EQ(name(Fault::kClosed), "closed");
  for (std::size_t i = 1; i < kFaults; ++i) {
    EXPECT_FALSE(name(static_cast<Fault>(i)).empty());
    EXPECT_NE(error_code(static_cast<Fault>(i)), ErrorCode::kOk);
  }
  EXPECT_EQ(fault_of_errno(EIO), Fault::kDeviceError);
  EXPECT_EQ(fault_of_errno(ENOSPC), Fault::kFull);
  EXPECT_EQ(fault_of_errno(EAGAIN), Fault::kBusy);
}

}  // namespace
}  // namespace kvd::disk
