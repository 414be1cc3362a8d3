#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <vector>

#include "kvd/core/door/events.hpp"

namespace kvd::sim {

/// What the worker's side of an engine is told with each step.
struct Orders {
  core::Demand demand;
  std::vector<std::uint32_t> leave;  ///< chunks that hold nothing in use any more
};

/// What the worker's side reports after a step.
struct News {
  std::vector<std::uint32_t> grown;     ///< chunks that have memory now
  std::vector<std::uint32_t> gone;      ///< chunks whose memory went back
  std::optional<std::int64_t> allowed;  ///< chunks beyond what is kept; none: unknown
  std::int64_t told = 0;                ///< how many chunks kvd knows to be wanted
};

/// The blocks of an engine that places them itself. The block that was freed last is handed out
/// last. Where memory comes and goes it does so by chunks of neighbouring blocks; the first chunk
/// is kept. Chunks that have to be given back retire: each of their blocks is claimed as it becomes
/// free.
///
/// Source: vLLM 0.32's block pool and client_lib/python/kvd_vllm/elastic/balloon.py.
/// Owner: one thread.
class Balloon {
 public:
  using Blocks = std::vector<std::uint32_t>;

  /// Has `blocks` blocks in chunks of `chunk_blocks`. With one chunk everything stays.
  Balloon(std::int64_t blocks, std::int64_t chunk_blocks);

  [[nodiscard]] bool elastic() const { return state_.size() > 1; }
  /// How many blocks requests may have now.
  [[nodiscard]] std::int64_t granted() const { return granted_; }
  [[nodiscard]] std::int64_t free() const { return std::ssize(free_); }
  /// Adds the next `count` free blocks to `blocks`. Precondition: that many are free.
  void take(std::int64_t count, Blocks& blocks);
  void give(const Blocks& blocks);

  void hear(const News& news);
  /// Lets as many chunks retire as it has beyond what it may have; without requests, all of them.
  /// Returns the chunks without used blocks, which leave with this step.
  [[nodiscard]] std::vector<std::uint32_t> shrink(bool busy, TimePoint now);
  /// Whether any of these blocks is in a chunk that others have waited for too long.
  [[nodiscard]] bool in_the_way(const Blocks& blocks, TimePoint now) const;
  /// A running request lacks a block, but should wait rather than preempt.
  [[nodiscard]] bool has_room_coming(TimePoint now);
  /// True while it still has something to give back or to tell, though it has no requests.
  [[nodiscard]] bool has_work() const;
  /// How many chunks beyond the kept ones hold this many blocks.
  [[nodiscard]] std::int64_t chunks_for(std::int64_t blocks) const;
  /// Chunks beyond what is kept that are in use or may be.
  [[nodiscard]] std::int64_t have() const;
  [[nodiscard]] std::int64_t chunk_blocks() const { return chunk_blocks_; }
  /// A block was lacking in the step that is planned at this time.
  [[nodiscard]] bool is_short(TimePoint now) const { return short_ && short_->last == now; }
  /// Chunks beyond what is kept, with one more than there are.
  [[nodiscard]] std::int64_t one_more() const {
    return std::min(have(), std::ssize(state_) - 2) + 1;
  }

 private:
  enum class State : std::uint8_t { kKept, kHeld, kGranted, kRetiring, kLeaving };
  struct Short {
    TimePoint first, last;
  };

  [[nodiscard]] std::uint32_t chunk_of(std::uint32_t block) const {
    return static_cast<std::uint32_t>(block / chunk_blocks_);
  }
  [[nodiscard]] std::int64_t size_of(std::uint32_t chunk) const;
  [[nodiscard]] std::int64_t used_in(std::uint32_t chunk) const;
  [[nodiscard]] std::vector<std::uint32_t> least_missed(std::int64_t count) const;
  [[nodiscard]] std::int64_t count(State state) const;
  void claim_free_of(std::uint32_t chunk);
  void let_go(std::uint32_t chunk);

  std::int64_t blocks_, chunk_blocks_;
  std::vector<State> state_;  ///< by chunk
  std::list<std::uint32_t> free_;
  std::vector<std::list<std::uint32_t>::iterator> place_;  ///< in free_, by block
  enum class Use : std::uint8_t { kFree, kUsed, kClaimed };
  std::vector<Use> use_;                       ///< by block
  std::map<std::uint32_t, TimePoint> retire_;  ///< by chunk: since when it has been retiring
  std::int64_t granted_ = 0;
  std::optional<std::int64_t> allowed_;
  std::int64_t told_ = 0;
  std::optional<Short> short_;
};

}  // namespace kvd::sim
