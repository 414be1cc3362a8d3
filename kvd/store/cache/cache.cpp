#include "kvd/store/cache/cache.hpp"

#include <algorithm>
#include <utility>

namespace kvd::store {

namespace {

constexpr Tier kMemory[kTiers] = {Tier::kHbm, Tier::kDram};

CacheTier cached_in(Tier tier) { return tier == Tier::kHbm ? CacheTier::kHbm : CacheTier::kDram; }
std::size_t number(Tier tier) { return static_cast<std::size_t>(tier); }

/// Rows that may wait to be copied. HBM gives up further rows without a copy.
constexpr std::size_t kMostAlone = 65536;

/// Domains come and go. This many are remembered while they have nothing cached.
constexpr std::size_t kMostEmpty = 64;

/// The domain's empty slabs. Each is the domain's until it is reclaimed.
Bytes left_empty(const pool::TierPool& pool, DomainId domain) {
  Bytes sum;
  for (const pool::SlabView& slab : pool.slabs()) {
    const bool empty = slab.use == pool::SlabUse::kClass && slab.used == 0;
    if (empty && slab.domain == domain) sum += pool.config().slab_bytes;
  }
  return sum;
}

void append(std::vector<SlotId>& to, const std::vector<SlotId>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

}  // namespace

Cache::Shelf& Cache::shelf(DomainId domain) {
  const auto known = shelves_.find(domain);
  if (known != shelves_.end()) return known->second;
  if (shelves_.size() >= kMostEmpty) {
    std::erase_if(shelves_, [](const auto& entry) { return entry.second.index.size() == 0; });
  }
  return shelves_.try_emplace(domain, config_).first->second;
}

void Cache::follow() {
  for (const RowId row : blocks_.take_moved()) {
    if (!blocks_.live(row)) continue;
    Shelf& shelf = shelf_of(row);
    Index& index = shelf.index;
    const EntryId entry = blocks_.row(row).key;
    for (const Tier tier : kMemory) {
      const bool whole = blocks_.complete(row, tier);
      if (whole == index.at(entry).in(cached_in(tier))) continue;
      if (whole) {
        (void)index.place(entry, cached_in(tier), Place(row.value));
        if (tier == Tier::kDram) consider_for_disk(domain_of(row), shelf, entry);
      } else {
        (void)index.forget(entry, cached_in(tier));
      }
    }
  }
}

Result<bool> Cache::name(BlockTable& table, const NewRow& row) {
  follow();
  const std::uint32_t groups = table.groups();
  const RowId before =
      row.block == 0 ? RowId() : blocks_.block(table[(row.block - 1) * groups]).row;
  if (row.block > 0 && !before) return false;
  Shelf& shelf = this->shelf(row.space.domain);
  const EntryId parent = before ? blocks_.row(before).key : EntryId();
  const SpaceId space = shelf.index.open(row.space);
  if (!space) return false;
  KVD_ASSIGN_OR_RETURN(const EntryId entry,
                       shelf.index.insert({space, parent, row.digest, row.saved}));
  if (shelf.rows.contains(entry)) {
    shelf.index.release(entry);
    return false;
  }
  shelf.rows.add(entry, blocks_.name(table, row.block, entry));
  follow();
  return true;
}

TierSet tiers_of(Cache& cache, const KeySpace& space, const Digest& digest) {
  cache.follow();
  Index& index = cache.shelf(space.domain).index;
  return tiers_of(index, index.known(space), digest);
}

void Cache::set_cost(const KeySpace& space, double times) {
  Index& index = shelf(space.domain).index;
  if (const SpaceId id = index.open(space)) index.set_cost(id, times);
}

std::uint32_t Cache::share(BlockTable& table, const KeySpace& space,
                           std::span<const Digest> chain) {
  follow();
  Shelf& shelf = this->shelf(space.domain);
  const Hit hit = shelf.index.lookup(shelf.index.known(space), chain);
  const std::span<const EntryId> found(hit.blocks);
  const std::size_t own = table.blocks();
  KVD_CHECK(own <= found.size(), "rows that are found come first in a table");
  shelf.index.release(found.first(own));  // the table has a lease of each
  for (const EntryId entry : found.subspan(own)) blocks_.share(table, shelf.rows.at(entry));
  return static_cast<std::uint32_t>(found.size());
}

// From the tail: a block goes before those it follows.
SlotsByTier Cache::truncate(BlockTable& table, std::uint32_t blocks, bool leave_hbm) {
  follow();
  std::vector<RowId> left;
  for (std::uint32_t block = blocks; block < table.blocks(); ++block) {
    const RowId row = blocks_.block(table[block * table.groups()]).row;
    if (row) left.push_back(row);
  }
  SlotsByTier slots = blocks_.truncate(table, blocks);
  for (auto row = left.rbegin(); row != left.rend(); ++row) leave(*row, leave_hbm, slots);
  return slots;
}

// A table names the row no more.
void Cache::leave(RowId row, bool leave_hbm, SlotsByTier& slots) {
  Shelf& shelf = shelf_of(row);
  const EntryId entry = blocks_.row(row).key;
  if (blocks_.row(row).owners.empty()) {
    for (const Tier tier : kMemory) {
      const bool stays = blocks_.complete(row, tier) && !(leave_hbm && tier == Tier::kHbm);
      if (!stays) append(slots[number(tier)], blocks_.vacate(row, tier));
    }
    follow();
    const Entry& known = shelf.index.at(entry);
    if (!known.in(CacheTier::kHbm) && !known.in(CacheTier::kDram)) {
      erase(shelf, row, slots);
    } else if (!known.in(CacheTier::kDram) && alone_.size() < kMostAlone) {
      alone_.emplace_back(domain_of(row), entry);
    }
  }
  shelf.index.release(entry);
}

void Cache::erase(Shelf& shelf, RowId row, SlotsByTier& slots) {
  shelf.rows.erase(blocks_.row(row).key);
  const SlotsByTier rest = blocks_.release(row);
  for (std::size_t tier = 0; tier < kTiers; ++tier) append(slots[tier], rest[tier]);
}

Bytes Cache::bytes_on(RowId row, Tier tier, DeviceId device) const {
  Bytes sum;
  for (const BlockId each : blocks_.row(row).blocks) {
    const SlotId slot = blocks_.block(each).at[number(tier)];
    if (slot.none()) continue;
    if (tier == Tier::kDram || tiers_.hbm().device_of(slot) == device) {
      sum += blocks_.kind(each).slot_bytes;
    }
  }
  return sum;
}

// Rows on other devices and rows of the taker's own chain are passed over. They are leased
// meanwhile, so they are no victims.
std::vector<SlotId> Cache::evict(DomainId domain, Tier tier, Bytes needed, DeviceId device) {
  Bytes left = evictable(domain, tier, device);
  if (left == Bytes(0)) return {};
  follow();
  Shelf& shelf = this->shelf(domain);
  SlotsByTier slots;
  std::vector<EntryId> passed;
  while (needed > Bytes(0) && evictions_left_ > 0 && left > Bytes(0)) {
    const EntryId victim = shelf.index.victim(cached_in(tier));
    if (!victim || (spares_retained_ && shelf.index.at(victim).retained)) break;
    const RowId row = shelf.rows.at(victim);
    const Bytes bytes = bytes_on(row, tier, device);
    const bool is_own = keeps_ != 0 && shelf.index.at(victim).chain == keeps_;
    if (is_own || bytes == Bytes(0)) {
      shelf.index.lease(victim);
      passed.push_back(victim);
      continue;
    }
    needed -= bytes;
    left -= bytes;
    --evictions_left_;
    evicted_[number(tier)] += static_cast<std::uint64_t>(bytes.value);
    if (shelf.index.at(victim).retained) {
      retained_evicted_ += static_cast<std::uint64_t>(bytes.value);
    }
    const bool elsewhere = blocks_.complete(row, tier == Tier::kHbm ? Tier::kDram : Tier::kHbm);
    append(slots[number(tier)], blocks_.vacate(row, tier));
    if (!elsewhere) erase(shelf, row, slots);
    (void)shelf.index.forget(victim, cached_in(tier));
  }
  shelf.index.release(passed);
  return std::move(slots[number(tier)]);
}

// A row that is being read makes way only once the read has ended.
Bytes Cache::evictable(DomainId domain, Tier tier, DeviceId device) const {
  Bytes sum = blocks_.cached(domain, tier, device);
  const auto shelf = shelves_.find(domain);
  if (shelf == shelves_.end()) return sum;
  const Shelf& of = shelf->second;
  const auto cached = [&](EntryId entry) {
    const RowId row = of.rows.find(entry);
    const bool is = row && blocks_.row(row).owners.empty();
    return is ? bytes_on(row, tier, device) : Bytes(0);
  };
  for (const EntryId entry : of.copied) sum -= cached(entry);
  for (const EntryId entry : of.read) {
    if (!of.copied.contains(entry)) sum -= cached(entry);
  }
  return sum;
}

// ---- copies of cached rows ----

bool Cache::is_alone(RowId row) const {
  if (!blocks_.row(row).owners.empty() || !blocks_.complete(row, Tier::kHbm)) return false;
  const std::vector<BlockId>& all = blocks_.row(row).blocks;
  return std::all_of(all.begin(), all.end(), [this](BlockId each) {
    return blocks_.block(each).at[number(Tier::kDram)].none();
  });
}

RowId Cache::next_alone() {
  while (!alone_.empty()) {
    const auto [domain, entry] = alone_.front();
    alone_.pop_front();
    const Shelf& shelf = this->shelf(domain);
    const RowId row = shelf.rows.find(entry);
    // The number may belong to another row by now, which is copied just as well.
    if (!row || shelf.copied.contains(entry)) continue;
    if (is_alone(row)) return row;
  }
  return {};
}

void put_back_alone(Cache& cache, RowId row) {
  cache.alone_.emplace_front(cache.domain_of(row), cache.blocks_.row(row).key);
}

std::vector<SlotId> Cache::take_for_copy(RowId row, std::size_t& most) {
  follow();
  const std::vector<BlockId>& all = blocks_.row(row).blocks;
  const BlockKind& first = blocks_.kind(all.front());
  const Taker taker{first.model_class, first.domain, EngineId(), first.slot_bytes};
  Index& index = shelf_of(row).index;
  const EntryId entry = blocks_.row(row).key;
  for (;; --most) {
    pool::SlotGrant grant =
        tiers_.try_take(Tier::kDram, taker, static_cast<std::uint32_t>(all.size()));
    if (grant.code == ErrorCode::kOk) return std::move(grant.slots);
    if (grant.code == ErrorCode::kWouldBlock) return {};
    const EntryId victim = index.victim(CacheTier::kDram);
    if (!victim || !index.less_wanted(CacheTier::kDram, victim, entry)) return {};
    // Without its head nothing finds the rest of a chain, which HBM may have.
    if (index.at(victim).children > 0 && !index.at(victim).in(CacheTier::kHbm)) return {};
    if (most == 0 || make_room(first.domain, Tier::kDram, Bytes(1)) == Bytes(0)) return {};
  }
}

RowCopy Cache::begin_copy(RowId row, std::vector<SlotId> to) {
  follow();
  const Bytes slot_bytes = blocks_.kind(blocks_.row(row).blocks.front()).slot_bytes;
  RowCopy copy{domain_of(row), blocks_.row(row).key, row, slot_bytes, {}, std::move(to)};
  for (const BlockId each : blocks_.row(row).blocks) {
    copy.from.push_back(blocks_.block(each).at[number(Tier::kHbm)]);
  }
  Shelf& shelf = this->shelf(copy.domain);
  shelf.index.lease(copy.entry);
  shelf.copied.insert(copy.entry);
  return copy;
}

// Requests may have begun with the row meanwhile and copied it themselves. A row that only a dying
// engine had is gone.
std::vector<SlotId> Cache::end_copy(const RowCopy& copy, bool ok) {
  follow();
  Shelf& shelf = this->shelf(copy.domain);
  bool used = ok && shelf.rows.find(copy.entry) == copy.row && !is_doomed(blocks_.row(copy.row));
  for (std::size_t group = 0; used && group < copy.from.size(); ++group) {
    const Block& block = blocks_.block(blocks_.row(copy.row).blocks[group]);
    used = block.at[number(Tier::kHbm)] == copy.from[group] && block.at[number(Tier::kDram)].none();
  }
  if (used) place(blocks_, copy.row, Tier::kDram, copy.to);
  follow();
  shelf.copied.erase(copy.entry);
  shelf.index.release(copy.entry);
  return used ? std::vector<SlotId>() : copy.to;
}

Bytes Cache::make_room(DomainId domain, Tier tier, Bytes needed, DeviceId device) {
  const std::uint64_t before = evicted_[number(tier)];
  tiers_.free(tier, evict(domain, tier, needed, device));
  return Bytes(static_cast<std::int64_t>(evicted_[number(tier)] - before));
}

Retained retained(const Cache& cache) {
  Retained sum{{}, cache.retained_evicted_};
  for (const auto& [domain, shelf] : cache.shelves_) sum.bytes += retained(shelf.index);
  return sum;
}

Bytes Cache::cached(Tier tier) const { return blocks_.usage().cached[number(tier)]; }

// Rows that are being summed are included: their slots wait until they have been read.
void clear(Cache& cache, DomainId domain) {
  Cache::Shelf& own = cache.shelf(domain);
  for (const EntryId entry : std::exchange(own.read, {})) own.index.release(entry);
  for (std::uint32_t device = 0; device < cache.tiers_.hbm().count(); ++device) {
    for (const Tier tier : kMemory) {
      (void)cache.make_room(domain, tier, Bytes(INT64_MAX), DeviceId(device));
    }
  }
}

bool Cache::clear(std::size_t most, std::optional<DomainId> only) {
  evictions_left_ = most;
  for (const auto& [domain, shelf] : shelves_) {
    if (!only || *only == domain) store::clear(*this, domain);
  }
  return std::exchange(evictions_left_, SIZE_MAX) > 0;
}

Bytes Cache::lent(DomainId domain, Tier tier, DeviceId device) const {
  const auto quota = quotas_[number(tier)]->find(domain);
  const Bytes own = quota == quotas_[number(tier)]->end() ? Bytes(0) : quota->second.guarantee;
  return std::max(Bytes(0), tiers_.pool(tier, device).used(domain) - own);
}

Bytes Cache::surplus(DomainId domain, Tier tier, DeviceId device) const {
  return std::min(evictable(domain, tier, device), lent(domain, tier, device));
}

// One take calls this again and again, so it must come to an end: at the other's guarantee.
Bytes Cache::make_others_room(DomainId domain, Tier tier, Bytes needed, DeviceId device) {
  Bytes made;
  for (const auto& [other, shelf] : shelves_) {
    if (made >= needed) break;
    if (other == domain || evictable(other, tier, device) == Bytes(0)) continue;
    const Bytes loses = lent(other, tier, device) - left_empty(tiers_.pool(tier, device), other);
    made += make_room(other, tier, std::min(needed - made, loses), device);
  }
  return made;
}

Bytes Cache::available(DomainId domain, Tier tier, DeviceId device) const {
  const pool::TierPool& pool = tiers_.pool(tier, device);
  const Bytes free = pool.available(domain);
  if (shelves_.empty()) return free;
  Bytes others;
  for (const auto& [other, shelf] : shelves_) {
    if (other != domain) others += surplus(other, tier, device);
  }
  const Bytes most = pool.config().slab_bytes * std::int64_t{pool.most_slabs(domain)};
  const Bytes room = std::max(Bytes(0), most - pool.used(domain) - free);
  return free + evictable(domain, tier, device) + std::min(others, room);
}

// A domain at its maximum gains only by giving up rows of its own.
bool Cache::make_way(Tier tier, const Taker& taker, Bytes needed, ErrorCode refused) {
  const bool full = refused == ErrorCode::kOutOfMemory;
  if (!full && refused != ErrorCode::kQuotaExceeded) return false;
  if (make_room(taker.domain, tier, needed, taker.device) > Bytes(0)) return true;
  if (!full || spares_retained_) return false;
  return make_others_room(taker.domain, tier, needed, taker.device) > Bytes(0);
}

pool::SlotGrant Cache::take(Tier tier, const Taker& taker, std::uint32_t count, std::size_t most) {
  pool::SlotGrant grant = try_take(tier, taker, count, most);
  if (grant.code != ErrorCode::kOk && grant.to_map.empty()) {
    tiers_.reclaim(tier, taker.domain, taker.device);
  }
  return grant;
}

// Freed slots may be of any class and in any slab, so the take is tried again until nothing is left
// to free.
pool::SlotGrant Cache::try_take(Tier tier, const Taker& taker, std::uint32_t count,
                                std::size_t most) {
  const Bytes needed = taker.slot_bytes * std::int64_t{count};
  evictions_left_ = most;
  keeps_ = taker.chain;
  spares_retained_ = taker.spares_retained;
  for (;;) {
    pool::SlotGrant grant = tiers_.try_take(tier, taker, count);
    const ErrorCode refused = grant.code;
    if (make_way(tier, taker, needed, refused)) continue;
    const bool full = refused == ErrorCode::kOutOfMemory || refused == ErrorCode::kQuotaExceeded;
    if (full && evictions_left_ == 0) grant.code = ErrorCode::kWouldBlock;
    evictions_left_ = SIZE_MAX;
    keeps_ = 0;
    spares_retained_ = false;
    return grant;
  }
}

pool::SlotGrant Cache::take(const Taker& taker, std::span<const DeviceSlots> wanted) {
  for (;;) {
    pool::SlotGrant grant = tiers_.take(taker, wanted);
    bool made = false;
    for (const DeviceSlots& part : wanted) {
      Taker there = taker;
      there.device = part.device;
      made |= make_way(Tier::kHbm, there, taker.slot_bytes * std::int64_t{part.count}, grant.code);
    }
    if (!made) return grant;
  }
}

std::string Cache::fault_of(const Shelf& shelf) const {
  if (std::string fault = shelf.index.validate(); !fault.empty()) return fault;
  std::string fault;
  shelf.rows.each([&](EntryId entry, RowId row) {
    if (!blocks_.live(row) || blocks_.row(row).key != entry) {
      fault = "an entry has another's row";
      return;
    }
    const std::size_t readers = shelf.copied.count(entry) + shelf.read.count(entry);
    if (shelf.index.at(entry).leases != blocks_.row(row).owners.size() + readers) {
      fault = "an entry has not as many leases as tables name its row";
    }
    for (const Tier tier : kMemory) {
      const Place place = shelf.index.at(entry).at[index(cached_in(tier))];
      if (place && place.value != row.value) fault = "an entry is where another's row is";
    }
  });
  return fault;
}

std::string Cache::validate() const {
  for (const auto& [domain, shelf] : shelves_) {
    if (std::string fault = fault_of(shelf); !fault.empty()) return fault;
  }
  return labels_.validate();
}

}  // namespace kvd::store
