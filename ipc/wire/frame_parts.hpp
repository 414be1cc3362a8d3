#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "ipc/wire/frame_buffer.hpp"
#include "ipc/wire/frame_check.hpp"
#include "ipc/wire/messages.hpp"
#include "ipc/wire/records.hpp"

/// What the command and the reply codec share.
namespace kvd::wire {

using ByteView = std::span<const std::byte>;

template <class T>
ByteView view_of(const T& pod) {
  return std::as_bytes(std::span(&pod, 1));
}

/// Completes the frame header that starts `header` and writes header and parts as one frame.
template <class Header>
Status write_frame(Header header, std::uint16_t type, std::initializer_list<ByteView> parts,
                   FrameBuffer& out) {
  std::size_t size = sizeof(Header);
  for (const ByteView part : parts) size += part.size();
  header.frame.magic = kMagic;
  header.frame.type = type;
  header.frame.length = static_cast<std::uint32_t>(size);
  header.frame.reserved = 0;
  std::byte* at = out.prepare(size).data();
  std::memcpy(at, &header, sizeof(Header));
  at += sizeof(Header);
  for (const ByteView part : parts) {
    if (!part.empty()) std::memcpy(at, part.data(), part.size());
    at += part.size();
  }
  return {};
}

template <class T>
Status check_count(const Records<T>& entries) {
  if (entries.size() <= kMaxRequestsPerStep) return {};
  return invalid("message", "more than " + std::to_string(kMaxRequestsPerStep) +
                                " entries; split it into several");
}

template <class T>
std::uint32_t count_of(const Records<T>& entries) {
  return static_cast<std::uint32_t>(entries.size());
}

inline Error wrong_size(std::string_view what) {
  return invalid(what, "the frame's size does not fit its type and counts");
}

/// The `count` entries that are all of `rest`, or none. A huge count fails before it is multiplied.
template <class T>
std::optional<Records<T>> take_all(ByteView rest, std::uint32_t count) {
  const bool fits = count <= kMaxRequestsPerStep && rest.size() == std::size_t{count} * sizeof(T);
  return fits ? std::optional(Records<T>::over(rest)) : std::nullopt;
}

/// What commands and replies have in common, except their version.
inline Fault check_frame(const FrameHeader& header, ByteView frame) {
  if (frame.size() > kMaxCommandFrame) return "frame: larger than 256 KiB; split it";
  return check_envelope(header, frame.size());
}

}  // namespace kvd::wire
