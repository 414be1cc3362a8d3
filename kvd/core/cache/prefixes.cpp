#include "kvd/core/cache/prefixes.hpp"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

namespace kvd::core {

bool Prefixes::tell(Request& request, const Fingerprint& fingerprint, std::uint32_t block,
                    const Digest& digest) {
  Content& content = request.content;
  const Session& session = requests_.session_of(request);
  const auto most = session.blocks_for(request.goal.prompt + request.goal.max_new);
  if (block != content.chain.size() || std::int64_t{block} >= most) return false;
  if (block == 0) content.fingerprint = fingerprint;
  if (content.fingerprint != fingerprint) return false;
  requests_.tell(request, {&digest, 1});
  if (block == 0) {
    disk_.meet(session, session.class_id, shape_on_disk(session.shape, fingerprint));
  }
  return true;
}

store::KeySpace Prefixes::space(const Request& request) const {
  const Session& session = requests_.session_of(request);
  return {request.content.fingerprint, session.info.domain, session.class_id,
          number_of(session.devices())};
}

store::RowId Prefixes::row(const Request& request, std::uint32_t block) const {
  return store_.blocks.block(request.table[block * request.table.groups()]).row;
}

std::size_t Prefixes::most(const Request& request) const {
  const std::int64_t block_tokens = requests_.session_of(request).shape.block_tokens;
  const auto whole = static_cast<std::size_t>((request.goal.prompt.value - 1) / block_tokens);
  return std::min(request.content.chain.size(), whole);
}

Found Prefixes::find(Request& request) {
  Content& content = request.content;
  const Session& session = requests_.session_of(request);
  const std::int64_t block_tokens = session.shape.block_tokens;
  const std::size_t asked = most(request);
  if (asked == 0 || !request.table.empty()) return Found::kNothing;
  // Until it runs, it does not count among those that keep a block in HBM.
  request.table.set_parked(true);
  const std::uint32_t known =
      store_.cache.share(request.table, space(request), std::span(content.chain).first(asked));
  // Where layers stream, no block can be brought in whole.
  if (request.layers.away.empty() && disk_.brings(request, space(request), asked, known)) {
    give_back(request);
    return Found::kSoon;
  }
  const auto [what, blocks, in_hbm] = wanted(request, usable(request, known));
  free(store_.cache.truncate(request.table, blocks));
  request.table.set_parked(what == Found::kInDram);
  if (blocks == 0) return what;
  content.named = request.sealed = blocks;
  request.progress.tokens = request.progress.planned = Tokens(blocks * block_tokens);
  requests_.session_of(request).ahead.wanting.insert(&request);
  if (what == Found::kInDram || is_mapped(request)) return what;
  give_back(request);
  return Found::kSoon;
}

// Otherwise a prefix that requests keep asking for would never leave a slab that a region waits
// for.
bool Prefixes::makes_way(const Request& request, std::uint32_t block) const {
  const std::uint32_t groups = request.table.groups();
  for (std::uint32_t i = block * groups; i < (block + 1) * groups; ++i) {
    const SlotId slot = store_.blocks.slot(request.table, i, Tier::kHbm);
    if (!slot.none() && store_.hbm.with(slot.slab()).retiring(slot.slab())) return true;
  }
  return false;
}

// Counts the leading rows that HBM has, and those that DRAM has and nobody runs on. Layers that
// stream are not brought into HBM whole, so a row that has only some of them there ends what can be
// used.
Prefixes::Usable Prefixes::usable(const Request& request, std::uint32_t known) const {
  const bool whole = request.layers.away.empty();
  Usable found;
  for (; found.blocks < known; ++found.blocks) {
    const store::RowId id = row(request, found.blocks);
    if (makes_way(request, found.blocks)) break;
    if (store::is_doomed(store_.blocks.row(id), &request.table)) break;
    if (store_.blocks.complete(id, Tier::kHbm)) {
      if (found.what == Found::kInDram) continue;
      found.what = Found::kInHbm;
      ++found.in_hbm;
      continue;
    }
    if (!whole || !store_.blocks.complete(id, Tier::kDram)) break;
    for (std::uint32_t group = 0; group < request.table.groups(); ++group) {
      const std::uint32_t i = found.blocks * request.table.groups() + group;
      if (store_.blocks.arriving(request.table, i)) return {Found::kSoon, 0, 0};
    }
    if (store::wanted_in_hbm(store_.blocks.row(id))) break;
    found.what = Found::kInDram;
  }
  return found;
}

// Until a prompt has been computed nobody knows what that costs, and loading it is the better
// guess.
Prefixes::Usable Prefixes::wanted(const Request& request, Usable usable) {
  if (usable.what != Found::kInDram) return usable;
  Session& session = requests_.session_of(request);
  const std::int64_t blocks = usable.blocks - usable.in_hbm;
  planner::LoadCosts costs;
  costs.tokens = Tokens(blocks * session.shape.block_tokens);
  costs.bytes = session.shape.slot_bytes() * (blocks * session.groups());
  const DeviceId device = session.devices().first();
  costs.bandwidth = BytesPerSecond{knowledge_.fetch_rate(device)};
  costs.queued = store_.transfers.coming(device);
  costs.prefill_per_token = planner::Seconds(Knowledge::prefill_token_s(session));
  costs.ahead = planner::Seconds(knowledge_.prefill_ahead_s(request));
  if (context_.load->decide(costs, session.costs.load) > Tokens(0)) return usable;
  return {usable.in_hbm > 0 ? Found::kInHbm : Found::kNothing, usable.in_hbm, usable.in_hbm};
}

void Prefixes::free(store::SlotsByTier slots) {
  for (const Tier tier : {Tier::kHbm, Tier::kDram}) {
    store_.tiers.free(tier, std::move(slots[static_cast<std::size_t>(tier)]));
  }
}

void Prefixes::give_back(Request& request) {
  const std::vector<store::RowId> left = rows(request);
  free(store_.cache.truncate(request.table, 0));
  store_.tiers.free(Tier::kHbm, vacate_parked(left));
  request.table.set_parked(false);
  request.content.named = request.sealed = request.synced = 0;
  requests_.session_of(request).ahead.wanting.erase(&request);
  request.progress.tokens = request.progress.planned = Tokens(0);
}

void Prefixes::count(const Request& request) {
  if (request.content.chain.empty()) return;
  Counters::Prefixes& counters = context_.counters.prefixes;
  ++counters.prompts;
  counters.asked += static_cast<std::uint64_t>(request.goal.prompt.value);
  const auto block_tokens = std::uint64_t{requests_.session_of(request).shape.block_tokens};
  for (std::uint32_t block = 0; block < request.content.named; ++block) {
    store_.cache.offer_to_disk(row(request, block));
    const bool loads = !store_.blocks.complete(row(request, block), Tier::kHbm);
    counters.found[loads ? 1 : 0] += block_tokens;
  }
}

void Prefixes::name(Request& request) {
  Content& content = request.content;
  const auto most = std::min<std::size_t>(request.sealed, content.chain.size());
  if (content.apart || content.named >= most) return;
  const Session& session = requests_.session_of(request);
  const store::SecondsPerByte saved = Knowledge::saved(session);
  const store::KeySpace where = space(request);
  // Blocks sealed before their engine was measured should not seem dearer than later ones.
  if (const auto cost = Knowledge::prefill_cost(session)) store_.cache.set_cost(where, *cost);
  for (; content.named < most && may_name(request); ++content.named) {
    const std::uint32_t block = content.named;
    for (std::uint32_t group = 0; group < request.table.groups(); ++group) {
      if (!store_.blocks.block(request.table[block * request.table.groups() + group]).sealed)
        return;
    }
    const auto done = store_.cache.name(request.table, {where, block, content.chain[block], saved});
    content.apart = !done.ok() || !*done;
    if (content.apart) return;
  }
}

bool Prefixes::may_name(Request& request) {
  if (names_left_ > 0) {
    --names_left_;
    return true;
  }
  if (!std::exchange(request.content.put_off, true)) unnamed_.push_back(request.key);
  return false;
}

void Prefixes::name_on() {
  while (names_left_ > 0 && !unnamed_.empty()) {
    const RequestKey key = unnamed_.front();
    unnamed_.pop_front();
    Request* request = requests_.find(key.engine, key.request);
    if (request == nullptr) continue;
    request->content.put_off = false;
    name(*request);
  }
  names_left_ = kMostNamed;
}

bool Prefixes::is_mapped(const Request& request) {
  const EngineId engine = requests_.session_of(request).id;
  const pool::SlabSet* mapped = store_.tiers.mappings().of(engine);
  if (mapped == nullptr) return false;
  if (request.table.in(Tier::kHbm) == 0) return true;
  std::vector<SlabIndex> missing;
  store_.blocks.each_slot(request.table, Tier::kHbm, [&](SlotId slot) {
    if (!(*mapped)[slot.slab().value]) missing.push_back(slot.slab());
  });
  if (missing.empty()) return true;
  std::sort(missing.begin(), missing.end());
  missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
  store_.tiers.mappings().send(engine, missing);
  return false;
}

bool Prefixes::is_arriving(const Request& request, Tier tier) const {
  const std::uint32_t end = request.content.named * request.table.groups();
  for (std::uint32_t i = 0; i < end; ++i) {
    const SlotId slot = store_.blocks.slot(request.table, i, tier);
    if (slot.none() || !store_.blocks.shared(request.table, i)) continue;
    if (store_.tiers.state(tier, slot) == pool::SlotState::kFilling) return true;
  }
  return false;
}

std::vector<store::RowId> Prefixes::rows(const Request& request) const {
  std::vector<store::RowId> found;
  found.reserve(request.content.named);
  for (std::uint32_t block = 0; block < request.content.named; ++block) {
    found.push_back(row(request, block));
  }
  return found;
}

std::vector<SlotId> Prefixes::vacate_parked(const std::vector<store::RowId>& rows) {
  std::vector<SlotId> slots;
  for (const store::RowId id : rows) {
    if (!store_.blocks.live(id)) continue;
    const std::vector<SlotId> left = store::vacate_parked(store_.blocks, id);
    slots.insert(slots.end(), left.begin(), left.end());
  }
  return slots;
}

}  // namespace kvd::core
