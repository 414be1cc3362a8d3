#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvd::disk {

/// CRC32C (the Castagnoli polynomial of RFC 3720, appendix B.4), by the instruction of the CPU
/// (SSE4.2, ARMv8 CRC) where it has one, else by table. Pure. Thread-safe.
[[nodiscard]] std::uint32_t crc32c(std::span<const std::byte> bytes);
/// The same by table on every CPU.
[[nodiscard]] std::uint32_t crc32c_by_table(std::span<const std::byte> bytes);

/// Sums of one layer group: the CRC32C of its first third, its second third and the rest. A third
/// is a multiple of 8 bytes, rounded down. The three are computed side by side, because the
/// instruction takes three cycles and a new one starts in each: twice the speed of one sum, and of
/// XXH3.
using GroupSum = std::array<std::uint32_t, 3>;
[[nodiscard]] GroupSum group_sum(std::span<const std::byte> bytes);
[[nodiscard]] GroupSum group_sum_by_table(std::span<const std::byte> bytes);

}  // namespace kvd::disk
