// Blocks of engines' caches that only the disk has are found, and loaded by way of DRAM.
#include <algorithm>
#include <utility>

#include "kvd/core/cache/engine_caches.hpp"

namespace kvd::core {

DiskCache::Asked EngineCaches::asked_by(const Session& session, const EngineCache& cache,
                                        std::span<const Digest> digests) const {
  DiskCache::Asked asked;
  asked.space = cache.space;
  asked.taker = taker_of(session, cache);
  asked.chain = digests;
  asked.block_tokens = cache.block_tokens;
  asked.saved = cache.saved;
  asked.apart = true;
  // The session that loads is not always the one that tells of its steps: vLLM's workers load, its
  // scheduler tells.
  const Session* told = &session;
  for (const auto& [id, other] : requests_.sessions()) {
    if (told->costs.prefill_token_s > 0) break;
    const auto& caches = other.leases.caches;
    const bool same = std::any_of(caches.begin(), caches.end(), [&](const auto& entry) {
      return entry.second.space == cache.space;
    });
    if (same) told = &other;
  }
  asked.prefill_token = planner::Seconds(Knowledge::prefill_token_s(*told));
  return asked;
}

void EngineCaches::on_lookup(const Command& command, const EngineCache& cache,
                             const CacheBlocks& asked) {
  const Session& session = requests_.sessions().at(command.engine);
  const Leading found = leading(session, cache, asked.digests);
  if (asked.await && found.awaits) {
    return context_.refuse(
        command, ErrorCode::kWouldBlock,
        "the disk or remote servers are being asked for these blocks: ask again");
  }
  rows_.asked(cache.space, asked.digests);
  context_.reply(command, ValueReply{found.blocks});
}

EngineCaches::Leading EngineCaches::leading(const Session& session, const EngineCache& cache,
                                            std::span<const Digest> digests) {
  const std::size_t in_dram = rows_.leading(cache.space, digests);
  std::size_t count = in_dram;
  DiskCache::Count below;
  while (count < digests.size()) {
    const DiskCache::Count more = disk_.leading(cache.space, digests.subspan(count));
    if (more.blocks == 0) break;
    below.blocks += more.blocks;
    below.remote += more.remote;
    count += more.blocks;
    count += rows_.leading(cache.space, digests.subspan(count));
  }
  const DiskCache::Asked asked = asked_by(session, cache, digests);
  const bool awaits = count < digests.size() && disk_.awaits_answer(asked, count);
  const bool pays = below.blocks > 0 && disk_.pays(asked, below);
  return {pays ? count : in_dram, awaits};
}

// The leading blocks that DRAM has are already being copied before anything is read, so they cannot
// make way for those behind.
void EngineCaches::load_from_disk(const Command& command, EngineCache& cache,
                                  const CacheBlocks& asked) {
  const Session& session = requests_.sessions().at(command.engine);
  const std::uint32_t in_dram = rows_.leading(cache.space, asked.digests);
  if (disk_.leading(cache.space, std::span(asked.digests).subspan(in_dram, 1)).blocks == 0) {
    return context_.refuse(command, ErrorCode::kNotFound,
                           "block " + std::to_string(in_dram) + " of " +
                               std::to_string(asked.digests.size()) +
                               " is not cached, or not any more: compute it");
  }
  Load load;
  load.engine = session.id;
  load.ticket = asked.ticket;
  load.by = asked_by(session, cache, {});
  load.digests = asked.digests;
  load.blocks = asked.blocks;
  load.layout = layout_of(session, cache);
  load.regions = regions_of(session, cache, asked.blocks);
  load.counts = counts_of(cache, asked.blocks.size());
  begin(session, asked.ticket, load.regions, load.counts);
  const std::uint64_t id = ++last_load_;
  loads_.emplace(id, std::move(load));
  go_on(id);
  context_.reply(command, ValueReply{asked.digests.size()});
}

// Blocks that have come are copied before the next part is read, because both use the same room.
void EngineCaches::go_on(std::uint64_t id) {
  Load& load = loads_.at(id);
  const std::span<const Digest> all(load.digests);
  const std::size_t here = load.failed ? 0 : rows_.leading(load.by.space, all.subspan(load.copied));
  if (here > 0) copy_part(id, here);
  // Some block of a part that was read did not come, or has made way.
  if (load.runs.empty() && load.copied < load.read) load.failed = true;
  if (load.runs.empty() && !load.failed && load.copied < all.size()) {
    DiskCache::Asked next = load.by;
    next.chain = all.subspan(load.copied);
    DiskCache::Coming coming = disk_.bring(next);
    load.failed = coming.code != ErrorCode::kOk && coming.code != ErrorCode::kWouldBlock;
    load.read = load.copied + coming.blocks;
    load.runs = std::move(coming.runs);
  }
  if (load.over()) end_load(id);
}

void EngineCaches::copy_part(std::uint64_t id, std::size_t count) {
  Load& load = loads_.at(id);
  const auto part = std::span<const Digest>(load.digests).subspan(load.copied, count);
  const std::size_t end = load.copied + count;
  const Digest* next = end < load.digests.size() ? &load.digests[end] : nullptr;
  const auto slots = rows_.find(load.by.space, part, next);
  store::CopyRanges order{context_.orders.next_ticket(), load.by.taker.domain, load.engine, true,
                          load.by.taker.slot_bytes,      load.layout,          {}};
  for (std::size_t i = 0; i < count; ++i) {
    order.blocks.push_back({load.blocks[load.copied + i], (*slots)[i]});
  }
  // As in on_load(): the rows may be given up meanwhile.
  store_.tiers.copy_reads(order.ticket, Tier::kDram, *slots);
  Copy copy{load.engine, load.ticket, {}, false, false, load.by.space, {}, {}, {}};
  copy.load = id;
  copies_.emplace(order.ticket, std::move(copy));
  context_.orders.add(std::move(order));
  load.copied += count;
  ++load.copies;
}

// Wakes loads that waited for these reads, and loads that found no room beside the reads of others.
void EngineCaches::on_read() {
  const std::vector<std::uint64_t> ended = disk_.take_ended();
  if (ended.empty()) return;
  std::vector<std::uint64_t> ids;
  for (auto& [id, load] : loads_) {
    bool concerned = load.runs.empty();
    for (const std::uint64_t run : ended) concerned |= load.runs.erase(run) > 0;
    if (concerned) ids.push_back(id);
  }
  for (const std::uint64_t id : ids) go_on(id);
  hints_.on_read(ended);
}

void EngineCaches::end_load(std::uint64_t id) {
  const auto ended = loads_.extract(id);
  const Load& load = ended.mapped();
  over(load.engine, load.ticket, load.regions, load.counts);
  context_.emit(SetTicket{load.engine, load.ticket,
                          load.failed ? SetTicket::State::kFailed : SetTicket::State::kDone});
}

// Blocks that are being read come to DRAM all the same. Copies under way end first.
void EngineCaches::give_up_loads(EngineId engine) {
  std::vector<std::uint64_t> over;
  for (auto& [id, load] : loads_) {
    if (load.engine != engine) continue;
    load.failed = true;
    load.runs.clear();
    if (load.over()) over.push_back(id);
  }
  for (const std::uint64_t id : over) end_load(id);
}

}  // namespace kvd::core
