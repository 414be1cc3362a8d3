#pragma once

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

/// Reads a POD from the front of bytes that need no alignment. Precondition: large enough.
template <class T>
[[nodiscard]] T read_front(std::span<const std::byte> bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

[[nodiscard]] inline std::string version_range(std::uint16_t min, std::uint16_t max) {
  return std::to_string(min) + ".." + std::to_string(max);
}

/// Magic, length and reserved field of a frame of at least sizeof(FrameHeader) bytes.
inline Status check_envelope(const FrameHeader& header, std::size_t frame_bytes) {
  if (header.magic != kMagic) return invalid("frame", "wrong magic; this is no kvd peer");
  if (header.length != frame_bytes) return invalid("frame", "length field is not the frame's size");
  if (header.reserved != 0) return invalid("frame", "reserved field is not zero");
  return {};
}

inline Status check_version(const FrameHeader& header) {
  if (header.version >= kVersionMin && header.version <= kVersionMax) return {};
  return make_error(ErrorCode::kUnsupported,
                    "frame has protocol version " + std::to_string(header.version) +
                        ", this side speaks " + version_range(kVersionMin, kVersionMax) +
                        "; update the older side");
}

inline Error unknown_type(std::uint16_t type) {
  return make_error(ErrorCode::kUnsupported, "message type " + std::to_string(type) +
                                                 " is unknown here; update the older side");
}

}  // namespace kvd::wire
