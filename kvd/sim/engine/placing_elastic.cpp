#include <algorithm>
#include <map>
#include <tuple>

#include "kvd/sim/engine/placing_engine.hpp"

/// How an engine whose HBM comes and goes tells its needs, and what it gives up.
/// Source: client_lib/python/kvd_vllm/elastic/balloon.py, mapping.py and scheduler.py.
namespace kvd::sim {

namespace {

/// New memory takes a while to come. So each request is taken to need this many more blocks for its
/// answer until then.
constexpr std::int64_t kAheadBlocks = 2;
/// The most different goals that kvd is told; the loosest ones count as one.
constexpr std::size_t kMostNeeds = 16;

}  // namespace

void PlacingEngine::make_way(TimePoint now) {
  const auto last = std::find_if(running_.rbegin(), running_.rend(), [&](std::uint32_t index) {
    return can_park(index) && balloon_.in_the_way(live_[index].blocks, now);
  });
  if (last == running_.rend()) return;
  const std::uint32_t index = *last;
  std::erase(running_, index);
  preempt(index);
}

std::int64_t PlacingEngine::blocks_ahead(std::uint32_t index, std::int64_t ahead) const {
  const Arrival& arrival = workload_[index];
  const Tokens most = arrival.prompt + arrival.announced.value_or(arrival.output);
  const Tokens more(ahead * profile_.shape.block_tokens);
  return blocks_for(std::min(all_tokens(index) + more, most));
}

Bytes PlacingEngine::bytes_of(std::int64_t chunks) const {
  return profile_.shape.slot_bytes() *
         (std::int64_t{profile_.shape.groups()} * balloon_.chunk_blocks() * chunks);
}

core::Need PlacingEngine::need_of(std::uint32_t index, TimePoint now, TimePoint origin) const {
  const Bytes block = profile_.shape.slot_bytes() * std::int64_t{profile_.shape.groups()};
  core::Need need;
  need.bytes = block * blocks_ahead(index, kAheadBlocks);
  need.least = bytes_of(1 + balloon_.chunks_for(blocks_ahead(index, 1)));
  need.age = std::max(now - (origin + whole(workload_[index].time)), Nanoseconds(1'000'000));
  need.ttft = whole(records_[index].ttft_slo);
  need.begun = live_[index].generated > Tokens(0);
  return need;
}

Orders PlacingEngine::orders(TimePoint now, TimePoint origin) {
  std::map<std::pair<Nanoseconds, bool>, core::Need> by_goal;
  std::int64_t blocks = 0;
  const auto add = [&](std::uint32_t index) {
    blocks += blocks_ahead(index, kAheadBlocks);
    core::Need need = need_of(index, now, origin);
    std::pair key(need.ttft, need.begun);
    if (by_goal.size() == kMostNeeds && !by_goal.contains(key)) key = by_goal.rbegin()->first;
    const auto [known, is_new] = by_goal.try_emplace(key, need);
    if (is_new) return;
    need.bytes += known->second.bytes;
    if (need.age > known->second.age) known->second = need;
    known->second.bytes = need.bytes;
  };
  std::for_each(running_.begin(), running_.end(), add);
  std::for_each(loading_.begin(), loading_.end(), add);
  std::for_each(waiting_.begin(), waiting_.end(), add);
  std::int64_t chunks = balloon_.chunks_for(blocks);
  if (balloon_.is_short(now)) chunks = std::max(chunks, balloon_.one_more());
  Orders out;
  core::Demand& demand = out.demand;
  demand.kept = demand.grain = bytes_of(1);
  demand.least = demand.kept;
  for (const auto& [key, need] : by_goal) {
    if (need.age > demand.age) std::tie(demand.age, demand.least) = std::tie(need.age, need.least);
    demand.needs.push_back(need);
  }
  demand.wanted = std::max(demand.least, bytes_of(1 + chunks));
  out.leave = balloon_.shrink(open() > 0, now);
  return out;
}

}  // namespace kvd::sim
