#include "kvd/core/cache/engine_caches.hpp"

#include <algorithm>
#include <numeric>

namespace kvd::core {

namespace {

constexpr std::size_t kMostCaches = 16;  ///< of a session
/// The most work that one command may give the control thread.
constexpr std::size_t kMostRanges = 65536;
/// The most that a session may have under way besides its first copy. It is counted in blocks,
/// since each takes about 70 bytes until its copy has ended, and in bytes, as a multiple of the
/// session's regions. An engine has use for each block once in and once out.
constexpr std::size_t kMostOfSession = 16384;
constexpr std::size_t kMostOfDomain = 65536;
constexpr std::int64_t kRegionsUnderWay = 4;
constexpr std::uint32_t kMostTokens = 1u << 20;  ///< of a block
constexpr std::int64_t kMostBlocks = std::int64_t{1} << 32;
/// The most rows that one event gives up: the control thread has others to serve.
constexpr std::size_t kMostAtOnce = 2048;
/// Smaller slots cost more to count than they hold, and an engine chooses its own size.
constexpr Bytes kLeastSlot{4096};

Error invalid(std::string message) {
  return make_error(ErrorCode::kInvalidArgument, std::move(message));
}

std::string text(std::int64_t value) { return std::to_string(value); }

/// Blocks smaller than a slot share a class whatever their size. So the size is part of what they
/// are found by: otherwise a larger block could be loaded with what the slot held before.
Fingerprint of_size(Fingerprint fingerprint, Bytes block) {
  auto size = block < kLeastSlot ? static_cast<std::uint64_t>(block.value) : 0;
  for (std::uint8_t& byte : fingerprint.digest.bytes) {
    byte = static_cast<std::uint8_t>(byte ^ (size & 0xff));
    size >>= 8;
  }
  return fingerprint;
}

/// The places at which each digest stands for the first time, in order.
std::vector<std::size_t> firsts(const std::vector<Digest>& digests) {
  std::vector<std::size_t> at(digests.size());
  std::iota(at.begin(), at.end(), 0);
  std::sort(at.begin(), at.end(), [&](std::size_t a, std::size_t b) {
    const auto order = digests[a] <=> digests[b];
    return order != 0 ? order < 0 : a < b;
  });
  const auto same = [&](std::size_t a, std::size_t b) { return digests[a] == digests[b]; };
  at.erase(std::unique(at.begin(), at.end(), same), at.end());
  std::sort(at.begin(), at.end());
  return at;
}

/// What a cache with `pieces` pieces takes.
Bytes bytes_of_pieces(std::size_t pieces) {
  return Bytes(static_cast<std::int64_t>(2 * sizeof(EngineCache) + pieces * sizeof(BlockPiece)));
}

struct Made {
  EngineCache cache;
  DiskShape on_disk;
};
/// All of the cache but its layout.
Result<Made> made_for(const OpenCache& open, const Session& session, Classes& classes) {
  Made made;
  EngineCache& cache = made.cache;
  cache.block_tokens = open.block_tokens;
  if (open.block_bytes == Bytes(0) && session.class_id) {
    if (open.block_tokens != session.shape.block_tokens) {
      return invalid("blocks of this session's requests have another number of tokens");
    }
    cache.space = {open.fingerprint, session.info.domain, session.class_id,
                   number_of(session.devices())};
    made.on_disk = shape_on_disk(session.shape, open.fingerprint);
    return made;
  }
  if (open.block_bytes <= Bytes(0) || open.block_tokens == 0 || open.block_tokens > kMostTokens) {
    return invalid("a block has no bytes, or not 1 to 2^20 tokens");
  }
  cache.slot_bytes = std::max(open.block_bytes, kLeastSlot);
  // It counts as a model of one layer and one token: only the size of its slots makes its class.
  KVD_ASSIGN_OR_RETURN(const ClassId model_class,
                       classes.of({1, 1, 1, cache.slot_bytes, 1}, session.info.domain));
  const Fingerprint fingerprint = of_size(open.fingerprint, open.block_bytes);
  cache.space = {fingerprint, session.info.domain, model_class, store::KeySpace::kPlacedByEngines};
  cache.block_bytes = open.block_bytes;
  cache.saved = Knowledge::saved(Tokens(open.block_tokens), open.block_bytes);
  cache.region = open.region;
  cache.blocks = open.blocks;
  made.on_disk = {fingerprint, 1, 1, open.block_tokens, 1, 1, cache.slot_bytes};
  return made;
}

/// Where the piece ends; none: it ends beyond `most`.
std::optional<std::int64_t> end_of(const BlockPiece& piece, std::int64_t blocks, Bytes most) {
  const std::int64_t limit = most.value;
  if (piece.offset.value < 0 || piece.stride.value < 0 || piece.bytes.value <= 0 ||
      piece.offset.value > limit || piece.bytes.value > limit ||
      (blocks > 1 && piece.stride.value > limit / (blocks - 1))) {
    return std::nullopt;
  }
  const std::int64_t end =
      piece.offset.value + (blocks - 1) * piece.stride.value + piece.bytes.value;
  return end <= limit ? std::optional(end) : std::nullopt;
}

}  // namespace

// ---- caches -------------------------------------------------------------------------------------

Status EngineCaches::check_pieces(const OpenCache& open, const Session& session) const {
  const auto slabs = Spaces::slabs_of(session, open.region);
  if (!slabs) {
    return make_error(
        ErrorCode::kNotFound,
        "region " + std::to_string(open.region.value) +
            " is not this session's: allocate it in the session that opens the cache");
  }
  const Bytes whole = slab_bytes(session) * std::int64_t{*slabs};
  Bytes sum;
  for (const BlockPiece& piece : open.pieces) {
    if (open.blocks < 1 || open.blocks > kMostBlocks || !end_of(piece, open.blocks, whole)) {
      return invalid("a piece of " + text(open.blocks) + " blocks is not within the region of " +
                     text(whole.value) + " bytes");
    }
    if (open.blocks > 1 && piece.stride < piece.bytes) {
      return invalid("pieces of neighbouring blocks overlap: a stride is at least the bytes");
    }
    sum += piece.bytes;
  }
  if (sum == open.block_bytes) return {};
  return invalid("the pieces of a block have " + text(sum.value) + " bytes, the block " +
                 text(open.block_bytes.value));
}

void EngineCaches::on_open(const Command& command, const OpenCache& open) {
  Session& session = requests_.sessions().at(command.engine);
  const auto refuse = [&](const Error& error) {
    context_.refuse(command, error.code, error.message);
  };
  if (session.ranks) {
    return refuse(make_error(ErrorCode::kUnsupported,
                             "the ranks of a group share their session, and a cache belongs to one "
                             "process: open another session for it, outside the group"));
  }
  if (session.leases.caches.size() >= kMostCaches) {
    return refuse(make_error(ErrorCode::kQuotaExceeded,
                             "16 caches of this session are open, the most there can be: close "
                             "some"));
  }
  const Bytes kept = bytes_of_pieces(open.region ? open.pieces.size() : 0);
  if (const Status fits = requests_.may_keep(session.info.domain, kept); !fits.ok()) {
    return refuse(fits.error());
  }
  if (open.region) {
    if (const Status fits = check_pieces(open, session); !fits.ok()) return refuse(fits.error());
  }
  auto made = made_for(open, session, classes_);
  if (!made.ok()) return refuse(made.error());
  auto [cache, on_disk] = *std::move(made);
  if (open.region) {
    cache.layout = std::make_shared<const store::BlockLayout>(
        store::BlockLayout{open.pieces, {}, slab_bytes(session)});
  }
  const CacheId id(++last_cache_);
  disk_.meet(session, cache.space.model_class, on_disk);
  session.leases.caches.emplace(id, std::move(cache));
  requests_.keep(session, kept);
  context_.reply(command, ValueReply{id.value});
}

void EngineCaches::on_close(const Command& command, const CloseCache& close) {
  const EngineCache* cache = cache_of(context_, requests_, command, close.cache);
  if (cache == nullptr) return;
  Session& session = requests_.sessions().at(command.engine);
  const auto& layout = cache->layout;
  requests_.keep(session, Bytes(0) - bytes_of_pieces(layout ? layout->pieces.size() : 0));
  session.leases.caches.erase(close.cache);
  hints_.end(session.id);
  context_.reply(command, Done{});
}

void EngineCaches::on_describe(const Command& command, const DescribeCache& described) {
  EngineCache* cache = cache_of(context_, requests_, command, described.cache);
  if (cache == nullptr) return;
  cache->model = described.model;
  DiskClasses::Disk* disk = disk_.classes().find(cache->space);
  const bool is_its_own =
      disk != nullptr && disk->domain == requests_.sessions().at(command.engine).info.domain;
  if (is_its_own && !described.model.empty()) disk->model = described.model;
  context_.reply(command, Done{});
}

EngineCache* cache_of(Context& context, Requests& requests, const Command& command, CacheId id) {
  auto& caches = requests.sessions().at(command.engine).leases.caches;
  const auto cache = caches.find(id);
  if (cache != caches.end()) return &cache->second;
  context.refuse(command, ErrorCode::kNotFound,
                 "cache " + std::to_string(id.value) + " is not this session's: open one");
  return nullptr;
}

// ---- what is asked of them ----------------------------------------------------------------------

Status EngineCaches::check_copy(const EngineCache& cache, const Session& session,
                                const CacheBlocks& asked) const {
  if (!cache.region) {
    return invalid("the cache was opened without a region: it can look up and drop alone");
  }
  if (!Spaces::slabs_of(session, cache.region)) {
    return make_error(ErrorCode::kNotFound, "the region of the cache has been freed");
  }
  if (asked.digests.empty() || asked.blocks.size() != asked.digests.size()) {
    return invalid("a copy of no blocks, or not of one for each digest");
  }
  std::vector<std::uint32_t> blocks = asked.blocks;
  std::sort(blocks.begin(), blocks.end());
  if (std::int64_t{blocks.back()} >= cache.blocks) {
    return invalid("block " + std::to_string(blocks.back()) + " of a region with " +
                   text(cache.blocks));
  }
  if (asked.op == CacheBlocks::Op::kLoad &&
      std::adjacent_find(blocks.begin(), blocks.end()) != blocks.end()) {
    return invalid("two blocks are loaded into one");
  }
  if (blocks.size() * cache.layout->pieces.size() > kMostRanges) {
    return invalid("more than 65536 pieces in one copy: split it over several");
  }
  if (open_.contains({session.id, asked.ticket % kTicketPlaces})) {
    return make_error(ErrorCode::kWouldBlock,
                      "256 copies of this session are under way: wait for some of them");
  }
  KVD_TRY(check_backed(cache, session, asked.blocks));
  return check_under_way(session, counts_of(cache, asked.blocks.size()));
}

Status EngineCaches::check_under_way(const Session& session, const UnderWay& more) const {
  const auto own = under_way_.find(session.id);
  if (own == under_way_.end()) return {};
  std::size_t of_domain = 0, slabs = 0;
  for (const auto& [engine, sum] : under_way_) {
    if (sum.domain == session.info.domain) of_domain += sum.blocks;
  }
  for (const auto& [id, region] : session.leases.regions) slabs += region.slabs.size();
  const Bytes most = slab_bytes(session) * (kRegionsUnderWay * static_cast<std::int64_t>(slabs));
  const UnderWay& sum = own->second;
  if (sum.blocks + more.blocks <= kMostOfSession && of_domain + more.blocks <= kMostOfDomain &&
      sum.bytes + more.bytes <= most) {
    return {};
  }
  return make_error(ErrorCode::kWouldBlock,
                    "copies of " + std::to_string(sum.blocks) + " blocks, " +
                        text(sum.bytes.value) + " bytes, of this session are under way, of " +
                        std::to_string(of_domain) +
                        " blocks in its domain: wait for some of them (at most 16384 blocks a "
                        "session, 65536 a domain, and four times the bytes of its regions)");
}

// A region has all its slabs; a space may lack some.
Status EngineCaches::check_backed(const EngineCache& cache, const Session& session,
                                  const std::vector<std::uint32_t>& blocks) const {
  if (!session.leases.spaces.contains(cache.region)) return {};
  const std::vector<Backing>& at = session.leases.spaces.at(cache.region).at;
  for (const std::uint32_t block : blocks) {
    bool backed = true;
    cache.layout->each_range(block, [&](std::size_t position, Bytes, Bytes, Bytes) {
      backed = backed && static_cast<bool>(at[position].region);
    });
    if (!backed) {
      return invalid("block " + std::to_string(block) +
                     " is where nothing stands behind the space: put a region there first");
    }
  }
  return {};
}

bool EngineCaches::on_blocks(const Command& command, const CacheBlocks& asked) {
  EngineCache* cache = cache_of(context_, requests_, command, asked.cache);
  if (cache == nullptr) return false;
  if (!cache->space.placed_by_engines()) {
    context_.refuse(command, ErrorCode::kInvalidArgument,
                    "blocks of requests are found by requests alone: submit one");
    return false;
  }
  const bool copies = asked.op == CacheBlocks::Op::kStore || asked.op == CacheBlocks::Op::kLoad;
  if (copies) {
    if (const Status fits = check_copy(*cache, requests_.sessions().at(command.engine), asked);
        !fits.ok()) {
      context_.refuse(command, fits.error().code, fits.error().message);
      return false;
    }
  }
  switch (asked.op) {
    case CacheBlocks::Op::kLookup:
      on_lookup(command, *cache, asked);
      return false;
    case CacheBlocks::Op::kDrop:
      context_.reply(command, ValueReply{drop(*cache, asked.digests)});
      return true;
    case CacheBlocks::Op::kRetain:
      hints_.retain(command, cache->space, asked);
      return false;
    case CacheBlocks::Op::kPin:
      hints_.pin(command, cache->space, asked);
      return false;
    case CacheBlocks::Op::kUnpin:
      hints_.unpin(command, cache->space, asked);
      return false;
    case CacheBlocks::Op::kDemote:
      hints_.demote(command, cache->space, asked);
      return false;
    case CacheBlocks::Op::kPrefetch:
      hints_.prefetch(command,
                      asked_by(requests_.sessions().at(command.engine), *cache, asked.digests),
                      asked.retain);
      return false;
    case CacheBlocks::Op::kStore:
      on_store(command, *cache, asked);
      return false;
    case CacheBlocks::Op::kLoad:
      on_load(command, *cache, asked);
      return false;
  }
  return false;
}

// ---- storing ------------------------------------------------------------------------------------

std::optional<std::vector<SlotId>> EngineCaches::take(const Command& command,
                                                      const store::Taker& taker, std::size_t count,
                                                      std::size_t held) {
  if (count == 0) return std::vector<SlotId>();
  const Bytes needed = taker.slot_bytes * static_cast<std::int64_t>(count);
  pool::SlotGrant grant;
  grant.code = ErrorCode::kOutOfMemory;
  const Bytes stays = taker.slot_bytes * static_cast<std::int64_t>(held);
  // Nothing makes way for blocks that would not fit even then.
  if (store_.cache.available(taker.domain, Tier::kDram) >= needed + stays) {
    grant = store_.cache.take(Tier::kDram, taker, static_cast<std::uint32_t>(count),
                              count + kMostAtOnce);
  }
  if (grant.code == ErrorCode::kOk) return std::move(grant.slots);
  if (grant.code == ErrorCode::kWouldBlock || !gone_.empty() || requests_.is_behind()) {
    context_.refuse(command, ErrorCode::kWouldBlock,
                    "DRAM is being made ready for the domain: store again");
  } else {
    context_.refuse(command, grant.code,
                    "DRAM has no room for " + text(needed.value) +
                        " bytes, nor anything cached that could make way: drop what is parked, "
                        "enlarge pool.dram, or raise the domain's DRAM quota");
  }
  return std::nullopt;
}

store::Taker EngineCaches::taker_of(const Session& session, const EngineCache& cache) {
  return {cache.space.model_class, session.info.domain, session.id, cache.slot_bytes,
          session.share().device};
}

void EngineCaches::on_store(const Command& command, EngineCache& cache, const CacheBlocks& asked) {
  const Session& session = requests_.sessions().at(command.engine);
  Copy copy{session.id,
            asked.ticket,
            {},
            asked.park,
            false,
            cache.space,
            taker_of(session, cache),
            cache.saved,
            {}};
  std::vector<Digest> parked;
  std::vector<std::size_t> fresh;
  // A block that is stored again counts as asked for, and does not make way for the others.
  copy.taker.chain = rows_.chain_of(cache.space, asked.digests);
  const std::vector<store::EntryId> held =
      rows_.store_again(cache.space, asked.digests, copy.taker.chain);
  for (const std::size_t i : firsts(asked.digests)) {
    const Digest& digest = asked.digests[i];
    const bool known = bool(rows_.row(cache.space, digest));
    if (!known) fresh.push_back(i);
    if (known && asked.park && park(copy, digest)) parked.push_back(digest);
  }
  const auto slots = take(command, copy.taker, fresh.size(), rows_.cached(cache.space, held));
  rows_.release(cache.space, held);
  if (!slots) {
    std::vector<SlotId> free;
    for (const Digest& digest : parked) {
      parked_.unpark(rows_.row(cache.space, digest), session.id, free);
    }
    store_.tiers.free(Tier::kDram, std::move(free));
    return;
  }
  store::CopyRanges order = order_for(session, cache, false);
  std::vector<std::uint32_t> blocks;
  for (std::size_t i = 0; i < fresh.size(); ++i) {
    copy.storing.push_back({asked.digests[fresh[i]], (*slots)[i]});
    storing_.begin({cache.space, asked.digests[fresh[i]]});
    blocks.push_back(asked.blocks[fresh[i]]);
    order.blocks.push_back({blocks.back(), (*slots)[i]});
  }
  copy.regions = regions_of(session, cache, blocks);
  copy.counts = counts_of(cache, fresh.size());
  start(session, std::move(copy), std::move(order));
  context_.reply(command, ValueReply{fresh.size()});
}

// Goes from the tail, so that the first of the blocks stored together is the last to go.
void EngineCaches::finish_store(Ticket ticket, const Copy& copy, bool ok) {
  std::vector<SlotId> unused;
  for (auto each = copy.storing.rbegin(); each != copy.storing.rend(); ++each) {
    const bool wanted = storing_.end({copy.space, each->digest}, ticket) && ok && !copy.lost;
    const bool kept =
        wanted && rows_.add({copy.space, copy.taker, copy.saved, each->digest, each->slot});
    if (!kept) unused.push_back(each->slot);
    if (wanted && copy.park) park(copy, each->digest);
  }
  store_.tiers.free(Tier::kDram, std::move(unused));
}

// ---- loading ------------------------------------------------------------------------------------

void EngineCaches::on_load(const Command& command, EngineCache& cache, const CacheBlocks& asked) {
  const Session& session = requests_.sessions().at(command.engine);
  const auto slots = rows_.find(cache.space, asked.digests);
  if (!slots) return load_from_disk(command, cache, asked);
  store::CopyRanges order = order_for(session, cache, true);
  Copy copy{session.id, asked.ticket, {}, false, false, cache.space, {}, {}, {}};
  for (std::size_t i = 0; i < slots->size(); ++i) {
    order.blocks.push_back({asked.blocks[i], (*slots)[i]});
  }
  copy.regions = regions_of(session, cache, asked.blocks);
  copy.counts = counts_of(cache, slots->size());
  // The rows may be given up meanwhile: their slots wait for the end of the copy.
  store_.tiers.copy_reads(order.ticket, Tier::kDram, *slots);
  start(session, std::move(copy), std::move(order));
  context_.reply(command, ValueReply{slots->size()});
}

// ---- copies -------------------------------------------------------------------------------------

// Slabs of a space come and go, and a copy under way goes on with those that stood there at its
// start.
std::shared_ptr<const store::BlockLayout> EngineCaches::layout_of(const Session& session,
                                                                  EngineCache& cache) const {
  std::vector<SlabIndex> slabs;
  const auto region = session.leases.regions.find(cache.region);
  if (region != session.leases.regions.end()) {
    slabs = region->second.slabs;
  } else {
    for (const Backing& at : session.leases.spaces.at(cache.region).at) slabs.push_back(at.slab);
  }
  if (slabs != cache.layout->slabs) {
    store::BlockLayout changed = *cache.layout;
    changed.slabs = std::move(slabs);
    cache.layout = std::make_shared<const store::BlockLayout>(std::move(changed));
  }
  return cache.layout;
}

std::set<RegionId> EngineCaches::regions_of(const Session& session, const EngineCache& cache,
                                            const std::vector<std::uint32_t>& blocks) {
  const auto space = session.leases.spaces.find(cache.region);
  if (space == session.leases.spaces.end()) return {cache.region};
  std::set<RegionId> regions;
  RegionId last;  // neighbours are mostly in the same region
  for (const std::uint32_t block : blocks) {
    cache.layout->each_range(block, [&](std::size_t position, Bytes, Bytes, Bytes) {
      const RegionId region = space->second.at[position].region;
      if (region != last) regions.insert(region);
      last = region;
    });
  }
  return regions;
}

store::CopyRanges EngineCaches::order_for(const Session& session, EngineCache& cache,
                                          bool to_hbm) const {
  store::CopyRanges order;
  order.ticket = context_.orders.next_ticket();
  order.domain = session.info.domain;
  order.engine = session.id;
  order.to_hbm = to_hbm;
  order.slot_bytes = cache.slot_bytes;
  order.layout = layout_of(session, cache);
  return order;
}

void EngineCaches::start(const Session& session, Copy copy, store::CopyRanges order) {
  if (order.blocks.empty()) {
    return context_.emit(SetTicket{copy.engine, copy.ticket, SetTicket::State::kDone});
  }
  begin(session, copy.ticket, copy.regions, copy.counts);
  copies_.emplace(order.ticket, std::move(copy));
  context_.orders.add(std::move(order));
}

void EngineCaches::begin(const Session& session, std::uint64_t ticket,
                         const std::set<RegionId>& regions, const UnderWay& counts) {
  context_.emit(SetTicket{session.id, ticket, SetTicket::State::kPending});
  open_.insert({session.id, ticket % kTicketPlaces});
  for (const RegionId region : regions) region_copies_.begin(region);
  UnderWay& sum = under_way_[session.id];
  sum.domain = session.info.domain;
  sum.blocks += counts.blocks;
  sum.bytes += counts.bytes;
}

void EngineCaches::over(EngineId engine, std::uint64_t ticket, const std::set<RegionId>& regions,
                        const UnderWay& counts) {
  for (const RegionId region : regions) (void)region_copies_.end(region);
  open_.erase({engine, ticket % kTicketPlaces});
  const auto sum = under_way_.find(engine);
  sum->second.blocks -= counts.blocks;
  sum->second.bytes -= counts.bytes;
  if (sum->second.blocks == 0) under_way_.erase(sum);
}

bool EngineCaches::on_copy(const CopyFinished& finished) {
  const auto ended = copies_.extract(finished.ticket);
  if (ended.empty()) return false;
  const Copy& copy = ended.mapped();
  if (!finished.ok && !finished.dropped) {
    ++context_.counters.copy_failures;
    context_.note(Note::Level::kError, copy.engine, "a copy of a cache's blocks failed");
  }
  finish_store(finished.ticket, copy, finished.ok);
  store_.tiers.copy_ended(finished.ticket);
  if (copy.load != 0) {
    Load& load = loads_.at(copy.load);
    --load.copies;
    load.failed = load.failed || !finished.ok;
    if (load.over()) end_load(copy.load);
    return true;
  }
  over(copy.engine, copy.ticket, copy.regions, copy.counts);
  const auto state = finished.ok ? SetTicket::State::kDone : SetTicket::State::kFailed;
  context_.emit(SetTicket{copy.engine, copy.ticket, state});
  return true;
}

// ---- parked, and dropped ------------------------------------------------------------------------

bool EngineCaches::park(const Copy& copy, const Digest& digest) {
  if (!requests_.sessions().contains(copy.engine)) return false;
  const store::RowId row = rows_.row(copy.space, digest);
  return parked_.park(row, {copy.space, digest}, copy.engine);
}

// Nobody else would ask for what was parked under an engine's own key.
bool EngineCaches::give_up_parked() {
  std::vector<SlotId> slots;
  std::size_t count = 0;
  while (!gone_.empty() && count < kMostAtOnce) {
    const store::RowId row = parked_.one_of(gone_.back());
    if (!row) {
      gone_.pop_back();
      continue;
    }
    parked_.unpark(row, gone_.back(), slots);
    if (!parked_.has(row)) forget(row, slots);
    ++count;
  }
  store_.tiers.free(Tier::kDram, std::move(slots));
  return count > 0;
}

void EngineCaches::forget(store::RowId row, std::vector<SlotId>& slots) {
  const SlotId slot = rows_.forget(row);
  if (!slot.none()) slots.push_back(slot);
}

std::uint64_t EngineCaches::drop(const EngineCache& cache, std::span<const Digest> digests) {
  std::vector<SlotId> slots, unparked;
  for (const Digest& digest : digests) {
    const store::RowId row = rows_.row(cache.space, digest);
    parked_.unpark(row, std::nullopt, unparked);
    forget(row, slots);
    disk_.forget(cache.space, digest);
    if (!copies_.empty()) storing_.drop({cache.space, digest}, copies_.rbegin()->first);
  }
  const std::uint64_t dropped = slots.size();
  slots.insert(slots.end(), unparked.begin(), unparked.end());
  store_.tiers.free(Tier::kDram, std::move(slots));
  return dropped;
}

void EngineCaches::end(Session& session, bool dies) {
  session.leases.caches.clear();
  hints_.end(session.id);
  gone_.push_back(session.id);
  (void)give_up_parked();
  for (auto& [ticket, copy] : copies_) {
    if (copy.engine != session.id) continue;
    copy.lost = copy.lost || dies || copy.park;
    // A copy that others will find is carried to its end.
    if (copy.storing.empty() || copy.lost) context_.orders.add(store::DropCopy{ticket});
  }
  give_up_loads(session.id);
}

std::size_t EngineCaches::slots() const {
  std::size_t sum = 0;
  for (const auto& [ticket, copy] : copies_) sum += copy.storing.size();
  return sum;
}

}  // namespace kvd::core
