#include "kvd/tiers/disk/files/checksum.hpp"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#define KVD_CRC_TARGET __attribute__((target("sse4.2")))
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#define KVD_CRC_TARGET __attribute__((target("+crc")))
#endif

namespace kvd::disk {
namespace {

using Table = std::array<std::uint32_t, 256>;

constexpr Table make_table() {
  Table table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
    table[i] = crc;
  }
  return table;
}
constexpr Table kTable = make_table();

std::array<std::span<const std::byte>, 3> thirds(std::span<const std::byte> bytes) {
  const std::size_t third = bytes.size() / 24 * 8;
  return {bytes.first(third), bytes.subspan(third, third), bytes.subspan(2 * third)};
}

#ifdef KVD_CRC_TARGET

#if defined(__x86_64__)
using Crc = std::uint64_t;  // as wide as the instruction's register
bool has_instruction() { return __builtin_cpu_supports("sse4.2") != 0; }
KVD_CRC_TARGET inline Crc add_word(Crc crc, std::uint64_t word) { return _mm_crc32_u64(crc, word); }
KVD_CRC_TARGET inline Crc add_byte(Crc crc, std::byte byte) {
  return _mm_crc32_u8(static_cast<std::uint32_t>(crc), std::to_integer<std::uint8_t>(byte));
}
#else
using Crc = std::uint32_t;
bool has_instruction() { return (::getauxval(AT_HWCAP) & (1ul << 7)) != 0; }  // HWCAP_CRC32
KVD_CRC_TARGET inline Crc add_word(Crc crc, std::uint64_t word) { return __crc32cd(crc, word); }
KVD_CRC_TARGET inline Crc add_byte(Crc crc, std::byte byte) {
  return __crc32cb(crc, std::to_integer<std::uint8_t>(byte));
}
#endif

std::uint64_t word_at(const std::byte* at) {
  std::uint64_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

KVD_CRC_TARGET Crc add(Crc crc, std::span<const std::byte> bytes) {
  std::size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) crc = add_word(crc, word_at(bytes.data() + i));
  for (; i < bytes.size(); ++i) crc = add_byte(crc, bytes[i]);
  return crc;
}

KVD_CRC_TARGET GroupSum sum_of_thirds(std::span<const std::byte> bytes) {
  const auto [first, second, rest] = thirds(bytes);
  Crc a = 0xffffffffu, b = a, c = a;
  for (std::size_t i = 0; i < first.size(); i += 8) {
    a = add_word(a, word_at(first.data() + i));
    b = add_word(b, word_at(second.data() + i));
    c = add_word(c, word_at(rest.data() + i));
  }
  c = add(c, rest.subspan(first.size()));
  return {~static_cast<std::uint32_t>(a), ~static_cast<std::uint32_t>(b),
          ~static_cast<std::uint32_t>(c)};
}

#endif

}  // namespace

std::uint32_t crc32c_by_table(std::span<const std::byte> bytes) {
  std::uint32_t crc = 0xffffffffu;
  for (const std::byte byte : bytes) {
    crc = (crc >> 8) ^ kTable[(crc ^ std::to_integer<std::uint32_t>(byte)) & 0xff];
  }
  return ~crc;
}

GroupSum group_sum_by_table(std::span<const std::byte> bytes) {
  const auto [first, second, rest] = thirds(bytes);
  return {crc32c_by_table(first), crc32c_by_table(second), crc32c_by_table(rest)};
}

#ifdef KVD_CRC_TARGET

std::uint32_t crc32c(std::span<const std::byte> bytes) {
  static const bool kInstruction = has_instruction();
  if (!kInstruction) return crc32c_by_table(bytes);
  return ~static_cast<std::uint32_t>(add(0xffffffffu, bytes));
}

GroupSum group_sum(std::span<const std::byte> bytes) {
  static const bool kInstruction = has_instruction();
  return kInstruction ? sum_of_thirds(bytes) : group_sum_by_table(bytes);
}

#else

std::uint32_t crc32c(std::span<const std::byte> bytes) { return crc32c_by_table(bytes); }
GroupSum group_sum(std::span<const std::byte> bytes) { return group_sum_by_table(bytes); }

#endif

}  // namespace kvd::disk
