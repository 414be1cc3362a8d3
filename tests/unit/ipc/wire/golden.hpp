#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace kvd::wire {

/// The bytes of a golden file: hex numbers, `#` starts a comment. Empty when there is no such file.
inline std::vector<std::byte> golden(const std::string& name) {
  std::string path = KVD_GOLDEN_DIR "/v2/";
  path.append(name).append(".hex");
  std::ifstream file(path);
  std::vector<std::byte> bytes;
  for (std::string line; std::getline(file, line);) {
    std::istringstream numbers(line.substr(0, line.find('#')));
    for (std::string number; numbers >> number;) {
      bytes.push_back(static_cast<std::byte>(std::stoul(number, nullptr, 16)));
    }
  }
  return bytes;
}

constexpr const char* kGoldenCommands[] = {"submit",
                                           "step",
                                           "allocate_region",
                                           "allocate_blocks",
                                           "place",
                                           "rotate",
                                           "finish",
                                           "abort",
                                           "stats",
                                           "ping",
                                           "name",
                                           "cache_open",
                                           "cache",
                                           "schedule",
                                           "space_open",
                                           "space_place",
                                           "share",
                                           "gaps",
                                           "needs",
                                           "layers",
                                           "cache_model",
                                           "cache_label",
                                           "cache_changes"};
constexpr const char* kGoldenReplies[] = {"step_reply",  "allocate_reply", "place_reply",
                                          "stats_reply", "ping_reply",     "failure_reply",
                                          "cache_reply", "schedule_reply", "changes_reply"};
constexpr const char* kGoldenAttach[] = {"hello",    "welcome",     "welcome_cuda", "refused",
                                         "map_slab", "slab_mapped", "unmap_slab",   "slab_unmapped",
                                         "goodbye",  "join_group"};

/// Puts a value at a byte offset.
template <class T>
void poke(std::vector<std::byte>& frame, std::size_t offset, T value) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&value);
  std::copy(bytes, bytes + sizeof(T), frame.begin() + static_cast<std::ptrdiff_t>(offset));
}

/// Adds or removes bytes at the end and keeps the length field true.
inline void resize(std::vector<std::byte>& frame, std::size_t size) {
  frame.resize(size);
  poke(frame, 8, static_cast<std::uint32_t>(size));
}

}  // namespace kvd::wire
