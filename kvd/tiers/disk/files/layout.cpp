#include "kvd/tiers/disk/files/layout.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>

namespace kvd::disk {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

using View = std::span<const std::byte, 4096>;
constexpr std::string_view kHeaderMagic = "KVDBLOCK";
constexpr std::string_view kSuperblockMagic = "KVDSEGMT";

// Offsets in a sector. The first five are the same in both kinds of header.
constexpr std::size_t kMagicAt = 0, kVersionAt = 8, kGroupsAt = 12, kGroupBytesAt = 16,
                      kFingerprintAt = 64, kSumAt = 4092;
constexpr std::size_t kGenerationAt = 24, kSegmentAt = 32, kPositionAt = 36, kDomainAt = 96,
                      kDigestAt = 128, kSumsAt = 160;
constexpr std::size_t kSegmentBytesAt = 24;
static_assert(kSumsAt + kMaxGroups * sizeof(GroupSum) <= kSumAt);

template <class T>
void put(Sector& sector, std::size_t at, const T& value) {
  std::memcpy(sector.data() + at, &value, sizeof value);
}

template <class T>
T get(View bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

Sector begin(const Layout& layout, std::string_view magic) {
  Sector sector{};
  std::memcpy(sector.data() + kMagicAt, magic.data(), magic.size());
  put(sector, kVersionAt, kFormatVersion);
  put(sector, kGroupsAt, layout.shape().groups);
  put(sector, kGroupBytesAt, layout.shape().group_bytes.value);
  put(sector, kFingerprintAt, layout.shape().fingerprint);
  return sector;
}

void end(Sector& sector) { put(sector, kSumAt, crc32c(std::span(sector).first<kSumAt>())); }

// The version is looked at before the sum: another version may keep its sum elsewhere.
Fault check_frame(const ClassShape& wanted, std::string_view magic, View bytes) {
  const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
  if (std::all_of(bytes.begin(), bytes.end(), is_zero)) return Fault::kEmpty;
  if (std::memcmp(bytes.data() + kMagicAt, magic.data(), magic.size()) != 0) {
    return Fault::kCorruptHeader;
  }
  if (get<std::uint32_t>(bytes, kVersionAt) != kFormatVersion) return Fault::kOtherVersion;
  if (get<std::uint32_t>(bytes, kSumAt) != crc32c(bytes.first<kSumAt>())) {
    return Fault::kCorruptHeader;
  }
  const ClassShape shape{get<Digest>(bytes, kFingerprintAt), get<std::uint32_t>(bytes, kGroupsAt),
                         Bytes(get<std::int64_t>(bytes, kGroupBytesAt))};
  return shape == wanted ? Fault::kNone : Fault::kOtherClass;
}

}  // namespace

Result<Layout> Layout::make(const ClassShape& shape, Bytes segment_bytes) {
  if (shape.groups == 0 || shape.groups > kMaxGroups) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a block on disk has 1 to " + std::to_string(kMaxGroups) +
                          " layer groups: choose layers_per_block accordingly");
  }
  if (shape.group_bytes < Bytes(1) || shape.group_bytes > kMaxGroupBytes) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a layer group on disk has 1 byte to 256 MiB: choose a smaller block_tokens "
                      "or layers_per_block");
  }
  Layout layout;
  layout.shape_ = shape;
  layout.segment_bytes_ = segment_bytes;
  layout.stride_ = kSector * pieces(shape.group_bytes, kSector);
  const std::int64_t slots = (segment_bytes - kSector) / layout.slot_bytes();
  if (segment_bytes.value % kSector.value != 0 || slots < 1 ||
      slots > std::numeric_limits<std::int32_t>::max()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a segment is a multiple of 4 KiB with room for one block: at least " +
                          std::to_string((kSector + layout.slot_bytes()).value) + " bytes");
  }
  layout.slots_ = static_cast<std::uint32_t>(slots);
  return layout;
}

Sector encode_header(const Layout& layout, const SlotHeader& header) {
  Sector sector = begin(layout, kHeaderMagic);
  put(sector, kGenerationAt, header.generation.value);
  put(sector, kSegmentAt, layout.segment(header.slot));
  put(sector, kPositionAt, layout.position(header.slot));
  put(sector, kDomainAt, header.key.domain);
  put(sector, kDigestAt, header.key.digest);
  std::memcpy(sector.data() + kSumsAt, header.sums.data(), header.sums.size() * sizeof(GroupSum));
  end(sector);
  return sector;
}

Fault decode_header(const Layout& layout, DiskSlot slot, View bytes, SlotHeader& header) {
  const Fault frame = check_frame(layout.shape(), kHeaderMagic, bytes);
  if (frame != Fault::kNone) return frame;
  if (get<std::uint32_t>(bytes, kSegmentAt) != layout.segment(slot) ||
      get<std::uint32_t>(bytes, kPositionAt) != layout.position(slot)) {
    return Fault::kMisplaced;
  }
  header.slot = slot;
  header.generation = SlotGeneration(get<std::uint64_t>(bytes, kGenerationAt));
  header.key = {get<Digest>(bytes, kDomainAt), get<Digest>(bytes, kDigestAt)};
  header.sums.resize(layout.shape().groups);
  std::memcpy(header.sums.data(), bytes.data() + kSumsAt, header.sums.size() * sizeof(GroupSum));
  return Fault::kNone;
}

Sector encode_superblock(const Layout& layout, std::uint32_t segment) {
  Sector sector = begin(layout, kSuperblockMagic);
  put(sector, kSegmentBytesAt, layout.segment_bytes().value);
  put(sector, kSegmentAt, segment);
  end(sector);
  return sector;
}

Fault decode_superblock(const ClassShape& shape, std::uint32_t segment, View bytes, Bytes& size) {
  const Fault frame = check_frame(shape, kSuperblockMagic, bytes);
  if (frame != Fault::kNone) return frame;
  size = Bytes(get<std::int64_t>(bytes, kSegmentBytesAt));
  return get<std::uint32_t>(bytes, kSegmentAt) == segment ? Fault::kNone : Fault::kMisplaced;
}

}  // namespace kvd::disk
