#include "kvd/store/index/labels.hpp"

#include <algorithm>

namespace kvd::store {

namespace {

/// What the nodes of the tables take beside the label, roughly.
constexpr std::size_t kNodes = 256;

}  // namespace

std::size_t Labels::bytes_of(const Label& label) {
  return sizeof(Held) + kNodes + label.lora.size() + label.tokens.size() * sizeof(label.tokens[0]);
}

// ---- what happens to blocks ----

void Labels::move(const KeySpace& key, const Digest& digest, CacheTier tier, bool there) {
  const auto space = spaces_.find(key);
  if (space == spaces_.end()) return;
  const auto found = space->second.by_digest.find(digest);
  if (found == space->second.by_digest.end()) return;
  const TierSet had = space->second.by_change.at(found->second).tiers;
  const TierSet has = there ? had | bit(tier) : had & ~bit(tier);
  if (has == had) return;
  change(space->second, found->second, has);
  if (has == 0 && space->second.gone.size() > kMostGone) (void)forget_one(key, space->second);
}

void Labels::move_on_disk(const Digest& name, bool there) {
  const auto known = names_.find(name);
  if (known == names_.end()) return;
  const auto [space, digest] = known->second;
  move(space, digest, CacheTier::kDisk, there);
}

void Labels::set_name(const KeySpace& key, const Digest& digest, const Digest& on_disk) {
  const auto space = spaces_.find(key);
  if (space == spaces_.end()) return;
  const auto found = space->second.by_digest.find(digest);
  if (found == space->second.by_digest.end()) return;
  Held& held = space->second.by_change.at(found->second);
  if (held.name == on_disk) return;
  if (held.name) names_.erase(*held.name);
  held.name = on_disk;
  names_[on_disk] = {key, digest};
}

// ---- labels ----

Labels::Space* Labels::open(const KeySpace& key) {
  if (const auto known = spaces_.find(key); known != spaces_.end()) return &known->second;
  const auto is_own = [&](const auto& entry) { return entry.first.domain == key.domain; };
  if (std::count_if(spaces_.begin(), spaces_.end(), is_own) >= std::ptrdiff_t{kMostSpaces}) {
    for (auto at = spaces_.begin(); at != spaces_.end();) {
      Space& other = at->second;
      const bool unused = is_own(*at) && other.gone.size() == other.by_change.size();
      while (unused && forget_one(at->first, other)) {
      }
      at = unused ? spaces_.erase(at) : std::next(at);
    }
  }
  if (std::count_if(spaces_.begin(), spaces_.end(), is_own) >= std::ptrdiff_t{kMostSpaces}) {
    return nullptr;
  }
  Space& made = spaces_[key];
  made.floor = last_;  // it may have been here earlier
  return &made;
}

bool Labels::add(const KeySpace& key, Label label, TierSet tiers) {
  const auto place = [&](const Digest& digest) {
    for (const CacheTier tier : {CacheTier::kHbm, CacheTier::kDram}) {
      moved(key, digest, tier, (tiers & bit(tier)) != 0);
    }
    return true;
  };
  Space* space = open(key);
  if (space == nullptr) return false;
  if (const auto known = space->by_digest.find(label.digest); known != space->by_digest.end()) {
    const TierSet had = space->by_change.at(known->second).tiers;
    if (had == 0) change(*space, known->second, had);  // others are forgotten before it
    return place(label.digest);
  }
  std::size_t& bytes = bytes_[key.domain];
  while (bytes + bytes_of(label) > kMostBytes || space->gone.size() > kMostGone) {
    if (!forget_one(key, *space)) return false;
  }
  bytes += bytes_of(label);
  const Number number = ++last_;
  const Digest digest = label.digest;
  space->by_digest.emplace(digest, number);
  space->by_change.emplace(number, Held{std::move(label), 0, false, {}});
  space->gone.insert(number);
  return place(digest);
}

void Labels::change(Space& space, Number number, TierSet tiers) {
  auto node = space.by_change.extract(number);
  space.gone.erase(number);
  node.key() = ++last_;
  Held& held = node.mapped();
  held.tiers = tiers;
  held.told = held.told || tiers != 0;
  space.by_digest.at(held.label.digest) = last_;
  if (tiers == 0) space.gone.insert(last_);
  space.by_change.insert(space.by_change.end(), std::move(node));
}

bool Labels::forget_one(const KeySpace& key, Space& space) {
  if (space.gone.empty()) return false;
  const Number number = *space.gone.begin();
  const auto oldest = space.by_change.find(number);
  const Held& held = oldest->second;
  if (held.told) space.floor = std::max(space.floor, number);
  if (held.name) names_.erase(*held.name);
  bytes_.at(key.domain) -= bytes_of(held.label);
  space.by_digest.erase(held.label.digest);
  space.by_change.erase(oldest);
  space.gone.erase(space.gone.begin());
  return true;
}

// A follower that starts over has not heard of blocks that were gone by then.
Labels::Changes Labels::since(const KeySpace& key, const Cursor& seen, std::size_t most_blocks,
                              std::size_t most_tokens) const {
  const auto found = spaces_.find(key);
  Changes changes;
  changes.next = seen;
  const Number floor = found == spaces_.end() ? last_ : found->second.floor;
  const Number heard = std::max(seen.start, seen.position);
  if (seen.life != life_ || heard < floor || heard > last_) {
    changes.over = true;
    changes.next = {life_, last_, 0};
  }
  if (found == spaces_.end()) {
    changes.next.position = last_;
    return changes;
  }
  const std::map<Number, Held>& all = found->second.by_change;
  std::size_t tokens = 0;
  auto at = all.upper_bound(changes.next.position);
  for (; at != all.end(); ++at) {
    const Held& held = at->second;
    if (!held.told || (held.tiers == 0 && at->first <= changes.next.start)) continue;
    tokens += held.tiers == 0 ? 0 : held.label.tokens.size();
    if (changes.all.size() == most_blocks || (tokens > most_tokens && !changes.all.empty())) break;
    changes.all.push_back({held.label, held.tiers});
    if (held.tiers == 0) changes.all.back().label.tokens.clear();
    changes.next.position = at->first;
  }
  changes.more = at != all.end();
  if (!changes.more) changes.next.position = last_;
  return changes;
}

// ---- reading ----

std::size_t Labels::size() const {
  std::size_t sum = 0;
  for (const auto& [key, space] : spaces_) sum += space.by_change.size();
  return sum;
}

std::size_t Labels::bytes(DomainId domain) const {
  const auto found = bytes_.find(domain);
  return found == bytes_.end() ? 0 : found->second;
}

std::string Labels::validate() const {
  std::map<DomainId, std::size_t> bytes;
  std::size_t names = 0;
  for (const auto& [key, space] : spaces_) {
    if (space.by_digest.size() != space.by_change.size())
      return "a label is not found by its digest";
    std::size_t gone = 0;
    for (const auto& [number, held] : space.by_change) {
      bytes[key.domain] += bytes_of(held.label);
      names += held.name ? 1u : 0u;
      gone += held.tiers == 0 ? 1u : 0u;
      if (held.tiers == 0 && !space.gone.contains(number))
        return "a label without block is not known";
      const auto by = space.by_digest.find(held.label.digest);
      if (by == space.by_digest.end() || by->second != number) return "a label has two places";
    }
    if (gone != space.gone.size()) return "a label with a block counts as one without";
  }
  for (const auto& [domain, sum] : bytes_) {
    if (sum != bytes[domain]) return "the labels' bytes are not what they are said to be";
  }
  return names == names_.size() ? "" : "a name on disk is that of no label";
}

}  // namespace kvd::store
