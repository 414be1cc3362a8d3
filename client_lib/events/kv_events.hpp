#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace kvd::events {

/// The kind of memory that blocks are in, by the three names that vLLM and its consumers use.
enum class Medium : std::uint8_t { kGpu, kCpu, kStorage };
constexpr std::size_t kMediums = 3;

/// Consecutive blocks are there from now on.
struct BlockStored {
  std::vector<std::uint64_t> hashes;
  std::optional<std::uint64_t>
      parent;  ///< hash of the block before the first; none: there is no such block
  std::vector<std::uint32_t> tokens;
  std::uint32_t block_tokens = 0;
  Medium medium = Medium::kGpu;
  std::string lora;  ///< empty: no adapter
  friend bool operator==(const BlockStored&, const BlockStored&) = default;
};
struct BlockRemoved {
  std::vector<std::uint64_t> hashes;
  Medium medium = Medium::kGpu;
  friend bool operator==(const BlockRemoved&, const BlockRemoved&) = default;
};
struct AllBlocksCleared {
  friend bool operator==(const AllBlocksCleared&, const AllBlocksCleared&) = default;
};
using KvEvent = std::variant<BlockStored, BlockRemoved, AllBlocksCleared>;

/// A batch as vLLM 0.32 puts it on the wire, in MessagePack: the bytes that its encoder makes of
/// the same events. `time`: seconds since 1970.
/// Source: vLLM 0.32.0, vllm/distributed/kv_events.py; blocks of full attention in group 0 of
/// data-parallel rank 0.
[[nodiscard]] std::string encode(double time, const std::vector<KvEvent>& events);

}  // namespace kvd::events
