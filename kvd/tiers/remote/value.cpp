#include "kvd/tiers/remote/value.hpp"

#include "ipc/digest/sha256.hpp"

namespace kvd::remote {

namespace {

Result<disk::Layout> layout_of(const disk::ClassShape& shape) {
  const Bytes stride = disk::kSector * pieces(shape.group_bytes, disk::kSector);
  return disk::Layout::make(shape, disk::kSector * 2 + stride * shape.groups);
}

}  // namespace

std::string key_name(const disk::ClassShape& shape, const disk::Digest& digest) {
  thread_local digest::Sha256 sha256;
  constexpr const char* kDigits = "0123456789abcdef";
  std::string name = "kvd1:";
  name.reserve(name.size() + 64);
  for (const std::uint8_t byte : sha256(digest, shape.fingerprint).bytes) {
    name += kDigits[byte >> 4];
    name += kDigits[byte & 15];
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

disk::Fault verify(const disk::ClassShape& shape, const disk::BlockKey& key,
                   const disk::Sector& header, const Groups& groups) {
  const Result<disk::Layout> layout = layout_of(shape);
  if (!layout.ok()) return disk::Fault::kOtherClass;
  disk::SlotHeader found;
  const disk::Fault fault = disk::decode_header(*layout, disk::DiskSlot(0), header, found);
  if (fault != disk::Fault::kNone) return fault;
  if (found.key != key) return disk::Fault::kOtherKey;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (disk::group_sum(groups[i]) != found.sums[i]) return disk::Fault::kCorruptPayload;
  }
  return disk::Fault::kNone;
}

}  // namespace kvd::remote
