#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "ipc/vocabulary/result.hpp"
#include "ipc/wire/messages.hpp"

/// What both decoders check of a frame before they look at its fields.
namespace kvd::wire {

inline Error invalid(std::string_view what, std::string_view why) {
  return make_error(ErrorCode::kInvalidArgument, std::string(what) + ": " + std::string(why));
}

/// Reads a POD from memory that may have any alignment.
template <class T>
[[nodiscard]] T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

/// Reads a POD from the front. Precondition: there are as many bytes.
template <class T>
[[nodiscard]] T read_front(std::span<const std::byte> bytes) {
  return load<T>(bytes.data());
}

[[nodiscard]] inline std::string version_range(std::uint16_t min, std::uint16_t max) {
  return std::to_string(min) + ".." + std::to_string(max);
}

/// Why something is refused; null: it is not refused. A plain pointer, as building a Status costs
/// more than the check it reports.
using Fault = const char*;

[[nodiscard]] inline Error refused(Fault fault) {
  return make_error(ErrorCode::kInvalidArgument, fault);
}

/// Whether the text is printable ASCII, NUL-terminated and zero-filled, so that it may go into a
/// log line as it is.
template <std::size_t N>
[[nodiscard]] bool is_clean_text(const std::array<char, N>& field) {
  const auto end = std::find(field.begin(), field.end(), '\0');
  const auto printable = [](char c) { return c >= ' ' && c <= '~'; };
  return end != field.end() && std::all_of(field.begin(), end, printable) &&
         std::all_of(end, field.end(), [](char c) { return c == '\0'; });
}

/// Magic, length and reserved field.
[[nodiscard]] inline Fault check_envelope(const FrameHeader& header, std::size_t frame_bytes) {
  if (header.magic != kMagic) return "frame: wrong magic; this is no kvd peer";
  if (header.length != frame_bytes) return "frame: length field is not the frame's size";
  if (header.reserved != 0) return "frame: reserved field is not zero";
  return nullptr;
}

[[nodiscard]] inline bool is_spoken(const FrameHeader& header) {
  return header.version >= kVersionMin && header.version <= kVersionMax;
}

[[nodiscard]] inline Error unknown_version(std::uint16_t version) {
  return make_error(ErrorCode::kUnsupported, "frame has protocol version " +
                                                 std::to_string(version) + ", this side speaks " +
                                                 version_range(kVersionMin, kVersionMax) +
                                                 "; update the older side");
}

[[nodiscard]] inline Error unknown_type(std::uint16_t type) {
  return make_error(ErrorCode::kUnsupported, "message type " + std::to_string(type) +
                                                 " is unknown here; update the older side");
}

}  // namespace kvd::wire
