#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

/// The content of the file that FORMAT.md describes, as it is in memory: little-endian, without
/// padding. The numbers of another build or version mean nothing; Header tells them apart.
namespace kvd::kept {

using Hash = std::array<std::uint8_t, 32>;

constexpr std::uint64_t kMagic = 0x314b'4445'5645'4b4d;
constexpr std::uint32_t kVersion = 3;
/// Records that a file has room for: its holes cost nothing.
constexpr std::uint32_t kRecords = 1u << 24;
constexpr std::size_t kHeaderBytes = 4096;

/// The first bytes of the file; the rest of kHeaderBytes is zero.
struct Header {
  std::uint64_t magic = kMagic;
  std::uint32_t version = kVersion;
  std::uint32_t record_bytes = 0;
  std::uint32_t records = kRecords;
  std::uint32_t sum = 0;         ///< CRC32C of the other fields but `used`
  std::uint64_t slab_bytes = 0;  ///< of the slabs that records speak of
  std::uint64_t used = 0;        ///< records from this number on were never written; a hint
};

/// One slot: a layer group of a sealed block that is found by its digest. Or, without layers, one
/// slab of a region: `group` is its position of `groups`, `fingerprint` the region's name, `digest`
/// what proves whose it is.
struct Record {
  std::uint64_t state = 0;       ///< as `generation`; 0: there is none. Written last, ended first
  std::uint64_t generation = 0;  ///< its number among all records ever written
  struct Place {
    std::uint32_t tier = 0;  ///< as kvd::Tier: 0 HBM, 1 DRAM
    std::uint32_t slab = 0, slot = 0;
    std::uint32_t unused = 0;
    std::uint64_t bytes = 0;  ///< of the slot
    friend auto operator<=>(const Place&, const Place&) = default;
  } place;
  struct Shape {
    std::uint32_t layers = 0, layers_per_block = 0, block_tokens = 0, ranks = 0;
    std::uint64_t token_bytes = 0;  ///< of a token and layer
    friend auto operator<=>(const Shape&, const Shape&) = default;
  } shape;
  std::uint32_t group = 0, groups = 0;
  std::uint32_t number = 0;        ///< of the block in its chain, from 0
  std::uint32_t has_parent = 0;    ///< 1 or 0
  std::uint64_t devices = 0;       ///< as store::KeySpace
  double saved = 0;                ///< seconds of computing that a byte of it saves
  std::uint32_t uid = 0, gid = 0;  ///< of an engine of the domain
  Hash fingerprint{};
  Hash domain{};  ///< SHA-256 of its name
  Hash digest{};
  Hash parent{};
  std::array<std::uint32_t, 3> sums{};  ///< of the slot's bytes: disk::group_sum
  std::uint32_t sum = 0;                ///< CRC32C of all fields but `state` and itself
  std::array<std::uint8_t, 8> unused{};
};
/// What a region is called: by the life of the daemon that granted it, and its number there.
inline Hash region_name(const std::array<std::uint8_t, 16>& boot, std::uint64_t number) {
  Hash name{};
  std::memcpy(name.data(), boot.data(), boot.size());
  std::memcpy(name.data() + boot.size(), &number, sizeof number);
  return name;
}
static_assert(sizeof(Record) == 256 && std::is_trivially_copyable_v<Record>);

}  // namespace kvd::kept
