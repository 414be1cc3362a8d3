#include "kvd/store/index/index.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "kvd/store/index/turnover_eviction.hpp"

namespace kvd::store {
namespace {

/// Engines choose fingerprints, and each space has tables of its own.
constexpr std::size_t kMostSpaces = 512;
constexpr std::array<CacheTier, kCacheTiers> kAllTiers = {CacheTier::kHbm, CacheTier::kDram,
                                                          CacheTier::kDisk};

/// The tiers that it may leave, one bit each.
unsigned leaves(const Entry& entry) {
  unsigned tiers = 0;
  for (const CacheTier tier : kAllTiers) tiers |= unsigned{entry.may_leave(tier)} << index(tier);
  return tiers;
}

CacheTier fastest(const Entry& entry) {
  return *std::find_if(kAllTiers.begin(), kAllTiers.end(),
                       [&](CacheTier tier) { return entry.in(tier); });
}

/// How far a found block moves the clock. It keeps found blocks in order; a million of them count
/// as one stored block.
constexpr double kFound = 0x1p-20;
/// Uses halve each time this many times the known blocks have been stored.
constexpr double kHalvedAfter = 8;

/// Entry::follower where it is not known how a prompt went on.
constexpr std::uint32_t kEnd = 1;
std::uint32_t tag_of(const Digest& digest) {
  std::uint32_t tag = 0;
  std::memcpy(&tag, digest.bytes.data(), sizeof tag);
  return tag <= kEnd ? tag + 2 : tag;
}

void count(std::uint16_t& number) {
  if (number < std::numeric_limits<std::uint16_t>::max()) ++number;
}

}  // namespace

Index::Index(const Config& config) : secret_(config.secret), labels_(config.labels) {
  for (const CacheTier tier : kAllTiers) {
    policies_[index(tier)] = config.policy
                                 ? config.policy(entries_)
                                 : std::make_unique<TurnoverEviction>(entries_, config.eviction);
  }
}

// ---- spaces ----

SpaceId Index::open(const KeySpace& key) {
  if (const SpaceId id = known(key)) return id;
  if (ids_.size() >= kMostSpaces) {
    std::erase_if(ids_, [this](const auto& entry) {
      const bool unused = space(entry.second).table.size() == 0;
      if (unused) spaces_[entry.second.value - 1] = nullptr;
      return unused;
    });
  }
  if (ids_.size() >= kMostSpaces) return {};
  auto free = std::find(spaces_.begin(), spaces_.end(), nullptr);
  if (free == spaces_.end()) free = spaces_.insert(free, nullptr);
  *free = std::make_unique<Space>(Space{key, DigestTable(secret_)});
  const SpaceId id(static_cast<std::uint32_t>(free - spaces_.begin()) + 1);
  ids_.emplace(key, id);
  return id;
}

SpaceId Index::known(const KeySpace& key) const {
  const auto found = ids_.find(key);
  return found == ids_.end() ? SpaceId() : found->second;
}

void Index::set_cost(SpaceId id, double times) {
  KVD_CHECK(times > 0, "computing a block costs nothing");
  space(id).log2_cost = std::log2(times);
}

std::array<std::vector<Place>, kCacheTiers> Index::close(SpaceId id) {
  std::vector<EntryId> blocks;
  space(id).table.each([&](EntryId block) { blocks.push_back(block); });
  std::sort(blocks.begin(), blocks.end());  // the table's order is that of a secret
  const auto leased = [&](EntryId block) { return at(block).leases != 0; };
  KVD_CHECK(std::none_of(blocks.begin(), blocks.end(), leased),
            "a space is closed while its blocks are leased");
  std::array<std::vector<Place>, kCacheTiers> places;
  for (const EntryId block : blocks) {
    for (const CacheTier tier : kAllTiers) {
      // A block that loses its last place is no longer in use. The same holds for the blocks before
      // it.
      if (!entries_.live(block) || !at(block).in(tier)) continue;
      places[index(tier)].push_back(forget(block, tier));
    }
  }
  KVD_CHECK(space(id).table.size() == 0, "a space is closed while its blocks are leased");
  ids_.erase(space(id).key);
  spaces_[id.value - 1] = nullptr;
  return places;
}

Index::Space& Index::space(SpaceId id) const {
  KVD_CHECK(id && id.value <= spaces_.size() && spaces_[id.value - 1] != nullptr,
            "no such space in the index");
  return *spaces_[id.value - 1];
}

// ---- blocks ----

template <class Change>
void Index::change(EntryId id, Change apply) {
  Entry& entry = entries_[id];
  const unsigned before = leaves(entry);
  apply(entry);
  const unsigned after = leaves(entry);
  if (before == after) return;
  for (const CacheTier tier : kAllTiers) {
    const unsigned bit = 1u << index(tier);
    if ((after & ~before & bit) != 0) policy(tier).may_leave(id);
    if ((before & ~after & bit) != 0) policy(tier).must_stay(id);
  }
}

EntryId Index::find(const Space& space, DigestTable::Hash hash, const Digest& digest) {
  return space.table.find(
      hash, [&](EntryId id) { return entries_[id].digest == digest; }, probes_);
}

EntryId Index::child(EntryId parent, const Space& space, const Digest& digest) {
  // A request that asks for a block mostly asks for the successor that came last time.
  if (parent) {
    const EntryId next = at(parent).next;
    if (next && at(next).digest == digest) return next;
  }
  const EntryId found = find(space, space.table.hash(digest), digest);
  if (!found || at(found).parent != parent) return {};
  if (parent) entries_[parent].next = found;
  return found;
}

TierSet tiers_of(Index& index, SpaceId id, const Digest& digest) {
  if (!id) return 0;
  const Index::Space& space = index.space(id);
  const EntryId found = index.find(space, space.table.hash(digest), digest);
  TierSet tiers = 0;
  for (const CacheTier tier : {CacheTier::kHbm, CacheTier::kDram}) {
    if (found && index.at(found).in(tier)) tiers |= bit(tier);
  }
  return tiers;
}

Hit Index::lookup(SpaceId id, std::span<const Digest> chain) {
  Hit hit;
  if (!id) return hit;
  const Space& space = this->space(id);
  hit.blocks.reserve(chain.size());
  EntryId parent;
  for (const Digest& digest : chain) {
    const EntryId block = child(parent, space, digest);
    if (!block || !at(block).anywhere()) break;
    found(block, hit);
    parent = block;
  }
  touch(hit.blocks);
  for (std::size_t i = 0; i < hit.blocks.size() && i + 1 < chain.size(); ++i) {
    followed(hit.blocks[i], chain[i + 1]);
  }
  return hit;
}

Hit Index::lookup_each(SpaceId id, std::span<const Digest> digests, const Digest* next) {
  Hit hit;
  hit.blocks.reserve(digests.size());
  for (const Digest& digest : digests) {
    const EntryId block = peek(id, digest);
    if (!block || !at(block).anywhere()) break;
    found(block, hit);
  }
  touch(hit.blocks);
  // Only its popularity keeps a block, not the blocks that follow it.
  bool popular = false;
  for (std::size_t i = hit.blocks.size(); i-- > 0;) {
    const Digest* after = i + 1 < digests.size() ? &digests[i + 1] : next;
    const bool used =
        after != nullptr ? followed(hit.blocks[i], *after) : followed_by(hit.blocks[i], kEnd);
    if (popular && !used) count(entries_[hit.blocks[i]].uses);
    popular = popular || used;
  }
  return hit;
}

void Index::found(EntryId id, Hit& hit) {
  change(id, [](Entry& entry) { ++entry.leases; });
  count(entries_[id].touches);
  hit.blocks.push_back(id);
  const CacheTier tier = fastest(at(id));
  if (hit.runs.empty() || hit.runs.back().tier != tier) hit.runs.push_back({tier, 0});
  ++hit.runs.back().blocks;
}

// From the tail, so that of the blocks touched by one lookup the first is the last to go.
void Index::touch(std::span<const EntryId> blocks) {
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) touch(*block);
}

// The rank of a block changes while it is leased, when no policy has it in order.
void Index::touch(EntryId id) {
  Entry& entry = entries_[id];
  clock_ += kFound;
  const double halvings = (clock_ - entry.last) / (kHalvedAfter * static_cast<double>(size()));
  const int shift = static_cast<int>(std::min(halvings, 15.0));
  entry.uses = static_cast<std::uint16_t>(std::max(1, entry.uses >> shift));
  entry.last = clock_;
  entry.demoted = false;
  for (const CacheTier tier : kAllTiers) {
    if (entry.in(tier)) policy(tier).touched(id);
  }
}

void Index::store_again(EntryId id, std::uint32_t chain) {
  count(entries_[id].touches);
  if (chain != 0) entries_[id].chain = chain;
  touch(id);
}

bool Index::followed(EntryId id, const Digest& next) { return followed_by(id, tag_of(next)); }

// True where it went on in another way than the last time. A prompt that ended here may have gone
// on the same way.
bool Index::followed_by(EntryId id, std::uint32_t tag) {
  Entry& entry = entries_[id];
  const std::uint32_t before = std::exchange(entry.follower, tag);
  const bool other = before != 0 && (tag == kEnd || (before != kEnd && before != tag));
  if (other) count(entry.uses);
  return other;
}

Result<EntryId> Index::insert(const NewBlock& block) {
  KVD_CHECK(!block.parent || at(block.parent).space == block.space,
            "a block's parent is in another space");
  KVD_CHECK(block.saved.value > 0, "a cached block saves no time");
  const Space& space = this->space(block.space);
  const DigestTable::Hash hash = space.table.hash(block.digest);
  const EntryId known = find(space, hash, block.digest);
  if (known && at(known).parent != block.parent) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the digest is that of a cached block after another one: the digest of a "
                      "block has to stand for all tokens before it too");
  }
  if (block.parent) followed(block.parent, block.digest);
  if (!known) return make(block, hash);
  lease(known);
  store_again(known);
  return known;
}

EntryId Index::make(const NewBlock& block, DigestTable::Hash hash) {
  const EntryId id = entries_.make(block.space);
  Entry& entry = entries_[id];
  entry.digest = block.digest;
  entry.parent = block.parent;
  entry.leases = entry.touches = 1;
  entry.last = clock_;
  entry.worth = static_cast<float>(std::log2(block.saved.value));
  if (block.parent) {
    ++entries_[block.parent].children;
    entries_[block.parent].next = id;
  }
  space(block.space).table.insert(hash, id);
  return id;
}

bool Index::place(EntryId id, CacheTier tier, Place place) {
  KVD_CHECK(place && at(id).leases > 0, "a block is placed by whoever leases it");
  const std::size_t t = index(tier);
  if (at(id).at[t]) return false;
  if (!at(id).anywhere()) entries_[id].last = ++clock_;
  entries_[id].at[t] = place;
  ++space(at(id).space).in[t];
  policy(tier).added(id);
  if (labels_ != nullptr) labels_->moved(space(at(id).space).key, at(id).digest, tier, true);
  if (at(id).parent) change(at(id).parent, [t](Entry& parent) { ++parent.children_in[t]; });
  return true;
}

Place Index::forget(EntryId id, CacheTier tier) {
  const std::size_t t = index(tier);
  KVD_CHECK(at(id).in(tier), "the tier does not have the block");
  if (tier == CacheTier::kDram) let_go(*this, id);
  Place was;
  change(id, [&](Entry& entry) { was = std::exchange(entry.at[t], Place()); });
  policy(tier).removed(id);
  if (labels_ != nullptr) labels_->moved(space(at(id).space).key, at(id).digest, tier, false);
  --space(at(id).space).in[t];
  if (at(id).parent) change(at(id).parent, [t](Entry& parent) { --parent.children_in[t]; });
  erase_unused(id);
  return was;
}

void Index::lease(EntryId id) {
  change(id, [](Entry& entry) { ++entry.leases; });
}

void Index::release(EntryId id) {
  KVD_CHECK(at(id).leases > 0, "a block is released that nobody leases");
  change(id, [](Entry& entry) { --entry.leases; });
  erase_unused(id);
}

void Index::release(std::span<const EntryId> blocks) {
  // From the tail: a block stays known as long as those after it are.
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) release(*block);
}

// As with touch(): while a policy has the block in its order, what orders it must not change.
void retain(Index& index, EntryId id, double until, Bytes bytes) {
  KVD_CHECK(index.at(id).in(CacheTier::kDram), "a block is retained that DRAM does not have");
  KVD_CHECK(!index.at(id).retained && !index.at(id).demoted, "a block is retained twice");
  index.change(id, [](Entry& entry) { ++entry.leases; });
  index.entries_[id].retained = true;
  index.space(index.at(id).space).retained = bytes;
  index.retained_bytes_ += bytes;
  index.retained_.insert(id, until);
  index.change(id, [](Entry& entry) { --entry.leases; });
}

void demote(Index& index, EntryId id, std::uint16_t touches) {
  KVD_CHECK(index.at(id).in(CacheTier::kDram), "a block is demoted that DRAM does not have");
  let_go(index, id);
  index.change(id, [](Entry& entry) { ++entry.leases; });
  Entry& demoted = index.entries_[id];
  demoted.demoted = true;
  demoted.touches = std::max(demoted.touches, touches);
  index.change(id, [](Entry& entry) { --entry.leases; });
}

void let_go(Index& index, EntryId id) {
  if (!index.at(id).retained && !index.at(id).demoted) return;
  index.change(id, [](Entry& entry) { ++entry.leases; });
  index.entries_[id].demoted = false;
  if (std::exchange(index.entries_[id].retained, false)) {
    index.retained_bytes_ -= index.space(index.at(id).space).retained;
    index.retained_.erase(id);
  }
  index.change(id, [](Entry& entry) { --entry.leases; });
}

void Index::erase_unused(EntryId id) {
  while (id && !at(id).anywhere() && at(id).leases == 0 && at(id).children == 0) {
    const EntryId parent = at(id).parent;
    DigestTable& table = space(at(id).space).table;
    table.erase(table.hash(at(id).digest), id);
    entries_.erase(id);
    if (parent) {
      --entries_[parent].children;
      if (at(parent).next == id) entries_[parent].next = {};
    }
    id = parent;
  }
}

// ---- reading ----

double Index::saves(EntryId id) const {
  return std::exp2(double{at(id).worth} + space(at(id).space).log2_cost);
}

Key Index::key(EntryId id) const { return {space(at(id).space).key, at(id).digest}; }

std::size_t Index::allocated_bytes() const {
  std::size_t sum = entries_.allocated_bytes();
  for (const auto& policy : policies_) sum += policy->allocated_bytes();
  for (const auto& space : spaces_) {
    if (space) sum += sizeof(Space) + space->table.allocated_bytes();
  }
  return sum;
}

}  // namespace kvd::store
