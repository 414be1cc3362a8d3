#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "client_lib/events/kv_events.hpp"
#include "kvd_client/types.hpp"

namespace kvd::events {

/// Puts blocks into events, neighbours of a chain into one.
class EventList {
 public:
  explicit EventList(std::uint32_t block_tokens) : block_tokens_(block_tokens) {}
  struct Block {
    std::uint64_t hash = 0;
    std::optional<std::uint64_t> parent;
    const std::string& lora;
    const std::vector<std::uint32_t>& tokens;
  };
  void stored(Medium medium, const Block& block);
  void removed(Medium medium, std::uint64_t hash);
  void cleared();
  [[nodiscard]] bool empty() const { return all_.empty(); }
  [[nodiscard]] std::vector<KvEvent> take();

 private:
  const std::uint32_t block_tokens_;
  std::vector<KvEvent> all_;
  /// The position of the last event of each medium after which there are only stores; none: no
  /// event.
  std::optional<std::size_t> open_[kMediums];
};

/// Where kvd has each labelled block, and what was announced of that.
///
/// Consumers lose a block that they hear of before its parent, and a lookup finds no block behind
/// one that is not there. So a block is announced while all blocks before it are, each medium once,
/// parents first, and is withdrawn before its parent.
///
/// Source: kvd; client_lib/python/kvd_vllm/events.py does the same for vLLM.
///
/// Owner: one thread. Cost: O(log blocks) a change, and O(blocks behind it) where the first of a
/// chain comes or goes.
class View {
 public:
  explicit View(std::uint32_t block_tokens) : block_tokens_(block_tokens), news_(block_tokens) {}

  void hear(const kvd_client::CacheChanges& changes);
  /// kvd is gone, and with it everything that it held.
  void clear();
  /// What has happened since the last call.
  [[nodiscard]] std::vector<KvEvent> take() { return news_.take(); }
  [[nodiscard]] bool has_news() const { return !news_.empty(); }
  /// Everything that is announced, preceded by an AllBlocksCleared.
  [[nodiscard]] std::vector<KvEvent> all() const;

 private:
  using Digest = kvd_client::Digest;
  using Mediums = unsigned;  ///< a bit each
  struct Block {
    std::optional<Digest> parent;
    std::string lora;
    std::vector<std::uint32_t> tokens;  ///< none: kvd has not told of it
    Mediums there = 0;                  ///< where kvd has it
    Mediums told = 0;                   ///< the same as it was announced
    std::set<Digest> children;
  };
  using Blocks = std::map<Digest, Block>;

  void place(const kvd_client::CacheChange& change);
  void forget(const Digest& digest);
  void drop(Digest digest);
  [[nodiscard]] bool is_behind_a_gap(const Block& block) const;
  void settle(const Digest& digest);
  void tell_behind(const Digest& digest);
  void withdraw_behind(const Digest& digest);
  void tell(const Digest& digest, Block& block, Mediums now);

  const std::uint32_t block_tokens_;
  Blocks blocks_;
  std::set<Digest> stale_;  ///< blocks that kvd has not told of since it started over
  EventList news_;
};

}  // namespace kvd::events
