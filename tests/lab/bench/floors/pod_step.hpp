#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace kvd::bench {

/// A step message as bare structs: copied into the frame, copied out of it, every field of every
/// entry looked at once.
struct PodStep {
  struct Header {
    std::uint32_t magic, type_and_version, length, reserved;
    std::uint64_t key[2], generation, sequence, timeout;
    std::uint64_t finished, running, version;
    std::uint32_t count, reserved2;
  };
  struct Entry {
    std::uint64_t request, tokens;
    std::uint32_t flags, reserved;
  };
  static_assert(sizeof(Header) == 88 && sizeof(Entry) == 24);

  static void encode(Header header, const std::vector<Entry>& entries, std::byte* frame) {
    header.count = static_cast<std::uint32_t>(entries.size());
    header.length = static_cast<std::uint32_t>(sizeof header + entries.size() * sizeof(Entry));
    std::memcpy(frame, &header, sizeof header);
    std::memcpy(frame + sizeof header, entries.data(), entries.size() * sizeof(Entry));
  }

  /// Returns whether the frame is right.
  static bool decode(const std::byte* frame, std::size_t size, Entry* entries) {
    Header header;
    std::memcpy(&header, frame, sizeof header);
    if (header.magic != 1 || header.length != size || header.count > 4096 ||
        size != sizeof header + header.count * sizeof(Entry)) {
      return false;
    }
    std::memcpy(entries, frame + sizeof header, header.count * sizeof(Entry));
    std::uint64_t tokens = 0, wrong = 0;
    for (std::uint32_t i = 0; i < header.count; ++i) {
      wrong |= static_cast<std::uint64_t>(entries[i].request == 0) | (entries[i].flags & ~1u) |
               entries[i].reserved;
      tokens |= entries[i].tokens;
    }
    return wrong == 0 && tokens >> 40 == 0;
  }
};

}  // namespace kvd::bench
