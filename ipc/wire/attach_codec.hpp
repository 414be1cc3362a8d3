#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "ipc/vocabulary/result.hpp"
#include "ipc/wire/messages.hpp"

/// Frames of the attach socket. They are fixed PODs, so encoding is filling in the header.
namespace kvd::wire {

/// The three slab notices share one POD; decoding tells them apart.
struct SlabMapped {
  SlabNotice notice;
};
struct UnmapSlab {
  SlabNotice notice;
};
struct SlabUnmapped {
  SlabNotice notice;
};

using AttachMessage = std::variant<Hello, JoinGroup, Welcome, Refused, MapSlab, SlabMapped,
                                   UnmapSlab, SlabUnmapped, Goodbye>;

/// Completes the header for the message's type and views the message as the frame to send. The
/// caller sets the version where a higher one than kVersionMin was negotiated.
[[nodiscard]] std::span<const std::byte> seal(Hello& message);
[[nodiscard]] std::span<const std::byte> seal(JoinGroup& message);
[[nodiscard]] std::span<const std::byte> seal(Welcome& message);
[[nodiscard]] std::span<const std::byte> seal(Refused& message);
[[nodiscard]] std::span<const std::byte> seal(MapSlab& message);
[[nodiscard]] std::span<const std::byte> seal(SlabMapped& message);
[[nodiscard]] std::span<const std::byte> seal(UnmapSlab& message);
[[nodiscard]] std::span<const std::byte> seal(SlabUnmapped& message);
[[nodiscard]] std::span<const std::byte> seal(Goodbye& message);

/// A copy of the frame, every field checked against its documented range.
/// Errors: Unsupported for a version or type this side does not know, InvalidArgument for the rest.
[[nodiscard]] Result<AttachMessage> decode_attach(std::span<const std::byte> frame);

/// Highest protocol version both sides speak.
/// Errors: Unsupported naming both ranges.
[[nodiscard]] Result<std::uint16_t> common_version(std::uint16_t peer_min, std::uint16_t peer_max);

/// The text in a zero-filled field. Precondition: decoded, so NUL-terminated.
template <std::size_t N>
[[nodiscard]] std::string_view text(const std::array<char, N>& field) {
  return std::string_view(field.data());
}

/// Puts as much of `value` into the field as fits before the closing NUL.
template <std::size_t N>
void set_text(std::array<char, N>& field, std::string_view value) {
  field.fill('\0');
  std::copy_n(value.begin(), std::min(value.size(), N - 1), field.begin());
}

}  // namespace kvd::wire
