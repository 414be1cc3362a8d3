#include "kvd/tiers/remote/value.hpp"

#include <algorithm>
#include <string_view>

namespace kvd::remote {

namespace {

Result<disk::Layout> layout_of(const disk::ClassShape& shape) {
  const Bytes stride = disk::kSector * pieces(shape.group_bytes, disk::kSector);
  return disk::Layout::make(shape, disk::kSector * 2 + stride * shape.groups);
}

}  // namespace

std::string key_name(const disk::ClassShape& shape, const disk::Digest& digest) {
  constexpr std::string_view kDigits = "0123456789abcdef", kPrefix = "kvd1:";
  std::string name(kPrefix.size() + 2 * digest.size(), '\0');
  char* at = std::ranges::copy(kPrefix, name.begin()).out.base();
  for (std::size_t i = 0; i < digest.size(); ++i) {
    const auto byte = static_cast<std::uint8_t>(digest[i] ^ shape.fingerprint[i]);
    *at++ = kDigits[byte >> 4];
    *at++ = kDigits[byte & 15];
  }
  return name;
}

Bytes value_bytes(const disk::ClassShape& shape) {
  return disk::kSector + shape.group_bytes * shape.groups;
}

Result<disk::Sector> make_header(const disk::ClassShape& shape, const disk::BlockKey& key,
                                 const ConstGroups& groups) {
  KVD_ASSIGN_OR_RETURN(const disk::Layout layout, layout_of(shape));
  disk::SlotHeader header{disk::DiskSlot(0), disk::SlotGeneration(0), key, {}};
  for (const auto& group : groups) header.sums.push_back(disk::group_sum(group));
  return disk::encode_header(layout, header);
}

disk::Fault read_header(const disk::ClassShape& shape, const disk::BlockKey& key,
                        const disk::Sector& header, disk::SlotHeader& said) {
  const Result<disk::Layout> layout = layout_of(shape);
  if (!layout.ok()) return disk::Fault::kOtherClass;
  const disk::Fault fault = disk::decode_header(*layout, disk::DiskSlot(0), header, said);
  if (fault != disk::Fault::kNone) return fault;
  return said.key == key ? disk::Fault::kNone : disk::Fault::kOtherKey;
}

disk::Fault compare(const disk::SlotHeader& said, std::size_t group, const Groups& groups) {
  const bool same = disk::group_sum(groups[group]) == said.sums[group];
  return same ? disk::Fault::kNone : disk::Fault::kCorruptPayload;
}

}  // namespace kvd::remote
