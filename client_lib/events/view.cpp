#include "client_lib/events/view.hpp"

#include <utility>

namespace kvd::events {
namespace {

constexpr Medium kAll[kMediums] = {Medium::kGpu, Medium::kCpu, Medium::kStorage};

constexpr unsigned bit(Medium medium) { return 1u << static_cast<unsigned>(medium); }

/// What vLLM makes of a digest for consumers that take numbers.
std::uint64_t number(const kvd_client::Digest& digest) {
  std::uint64_t value = 0;
  for (std::size_t i = digest.size() - sizeof value; i < digest.size(); ++i) {
    value = value << 8 | digest[i];
  }
  return value;
}

}  // namespace

// ---- events ----

void EventList::stored(Medium medium, const Block& block) {
  std::optional<std::size_t>& open = open_[static_cast<std::size_t>(medium)];
  auto* last = open ? std::get_if<BlockStored>(&all_[*open]) : nullptr;
  if (last == nullptr || !block.parent || last->hashes.back() != *block.parent ||
      last->lora != block.lora) {
    open = all_.size();
    all_.emplace_back(BlockStored{{}, block.parent, {}, block_tokens_, medium, block.lora});
    last = std::get_if<BlockStored>(&all_.back());
  }
  last->hashes.push_back(block.hash);
  last->tokens.insert(last->tokens.end(), block.tokens.begin(), block.tokens.end());
}

void EventList::removed(Medium medium, std::uint64_t hash) {
  auto* last = all_.empty() ? nullptr : std::get_if<BlockRemoved>(&all_.back());
  if (last == nullptr || last->medium != medium) {
    for (auto& open : open_) open.reset();
    last = std::get_if<BlockRemoved>(&all_.emplace_back(BlockRemoved{{}, medium}));
  }
  last->hashes.push_back(hash);
}

void EventList::cleared() { all_.emplace_back(AllBlocksCleared{}); }

std::vector<KvEvent> EventList::take() {
  for (auto& open : open_) open.reset();
  return std::exchange(all_, {});
}

// ---- what kvd says ----

void View::hear(const kvd_client::CacheChanges& changes) {
  if (changes.over) {
    for (const auto& [digest, block] : blocks_) stale_.insert(digest);
  }
  for (const kvd_client::CacheChange& change : changes.all) {
    stale_.erase(change.digest);
    change.tokens.empty() ? forget(change.digest) : place(change);
  }
  if (changes.more) return;
  for (const Digest& digest : std::exchange(stale_, {})) forget(digest);
}

void View::clear() {
  std::vector<Digest> all;
  for (const auto& [digest, block] : blocks_) all.push_back(digest);
  for (const Digest& digest : all) forget(digest);
  blocks_.clear();
  stale_.clear();
}

void View::place(const kvd_client::CacheChange& change) {
  Block& block = blocks_[change.digest];
  if (block.tokens.empty()) {
    block.lora = change.lora;
    block.tokens = change.tokens;
    if (change.parent != Digest{}) {
      block.parent = change.parent;
      blocks_[change.parent].children.insert(change.digest);
    }
  }
  block.there = (change.in_hbm ? bit(Medium::kGpu) : 0u) |
                (change.in_dram ? bit(Medium::kCpu) : 0u) |
                (change.on_disk ? bit(Medium::kStorage) : 0u);
  settle(change.digest);
}

void View::forget(const Digest& digest) {
  const auto block = blocks_.find(digest);
  if (block == blocks_.end()) return;
  block->second.there = 0;
  settle(digest);
  drop(digest);
}

// Forgets a block that is nowhere and that no known block follows, and those before it.
void View::drop(Digest digest) {
  for (;;) {
    const auto at = blocks_.find(digest);
    if (at == blocks_.end() || at->second.there != 0 || !at->second.children.empty()) return;
    const std::optional<Digest> parent = at->second.parent;
    blocks_.erase(at);
    if (!parent) return;
    if (const auto above = blocks_.find(*parent); above != blocks_.end()) {
      above->second.children.erase(digest);
    }
    digest = *parent;
  }
}

// ---- what is announced ----

bool View::is_behind_a_gap(const Block& block) const {
  if (!block.parent) return false;
  const auto above = blocks_.find(*block.parent);
  return above == blocks_.end() || above->second.told == 0;
}

// Announces the block and its successors as they are now.
void View::settle(const Digest& digest) {
  Block& block = blocks_.at(digest);
  const Mediums now = is_behind_a_gap(block) ? 0 : block.there;
  const bool was = block.told != 0;
  if (was && now == 0) withdraw_behind(digest);
  tell(digest, block, now);
  if (!was && now != 0) tell_behind(digest);
}

void View::tell_behind(const Digest& digest) {
  std::vector<Digest> ahead(blocks_.at(digest).children.begin(), blocks_.at(digest).children.end());
  while (!ahead.empty()) {
    const Digest child = ahead.back();
    ahead.pop_back();
    Block& block = blocks_.at(child);
    tell(child, block, block.there);
    if (block.told != 0) ahead.insert(ahead.end(), block.children.begin(), block.children.end());
  }
}

void View::withdraw_behind(const Digest& digest) {
  std::vector<Digest> order{digest};
  for (std::size_t i = 0; i < order.size(); ++i) {
    for (const Digest& child : blocks_.at(order[i]).children) {
      if (blocks_.at(child).told != 0) order.push_back(child);
    }
  }
  for (std::size_t i = order.size(); i-- > 1;) tell(order[i], blocks_.at(order[i]), 0);
}

void View::tell(const Digest& digest, Block& block, Mediums now) {
  std::optional<std::uint64_t> parent;
  if (block.parent) parent = number(*block.parent);
  const Mediums come = now & ~block.told, gone = block.told & ~now;
  for (const Medium medium : kAll) {
    if ((come & bit(medium)) == 0) continue;
    news_.stored(medium, {number(digest), parent, block.lora, block.tokens});
  }
  for (const Medium medium : kAll) {
    if ((gone & bit(medium)) != 0) news_.removed(medium, number(digest));
  }
  block.told = now;
}

std::vector<KvEvent> View::all() const {
  EventList list(block_tokens_);
  list.cleared();
  std::vector<Digest> ahead;
  for (const auto& [digest, block] : blocks_) {
    if (!block.parent && block.told != 0) ahead.push_back(digest);
  }
  while (!ahead.empty()) {
    const Digest digest = ahead.back();
    ahead.pop_back();
    const Block& block = blocks_.at(digest);
    std::optional<std::uint64_t> parent;
    if (block.parent) parent = number(*block.parent);
    for (const Medium medium : kAll) {
      if ((block.told & bit(medium)) == 0) continue;
      list.stored(medium, {number(digest), parent, block.lora, block.tokens});
    }
    for (const Digest& child : block.children) {
      if (blocks_.at(child).told != 0) ahead.push_back(child);
    }
  }
  return list.take();
}

}  // namespace kvd::events
