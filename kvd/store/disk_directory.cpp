#include "kvd/store/disk_directory.hpp"

#include <algorithm>

#include "ipc/vocabulary/check.hpp"

namespace kvd::store {

namespace {

/// Slots that are looked at for one that may make way: more are not read and written at a time.
constexpr int kMostPassed = 1024;

}  // namespace

DiskDirectory::DiskDirectory(std::uint32_t slots) : slots_(slots), free_(slots), bound_(slots) {}

const DiskDirectory::Slot* DiskDirectory::known(const Digest& domain, const Digest& name) const {
  const auto shelf = shelves_.find(domain);
  if (shelf == shelves_.end()) return nullptr;
  const auto found = shelf->second.by_name.find(name);
  return found == shelf->second.by_name.end() ? nullptr : &slots_[found->second];
}

std::optional<DiskDirectory::Place> DiskDirectory::find(const Digest& domain,
                                                        const Digest& name) const {
  const Slot* slot = known(domain, name);
  if (slot == nullptr || slot->state != State::kThere || is_ending(*slot)) return std::nullopt;
  return Place{static_cast<std::uint32_t>(slot - slots_.data()), slot->generation};
}

bool DiskDirectory::knows(const Digest& domain, const Digest& name) const {
  const Slot* slot = known(domain, name);
  return slot != nullptr && !is_left(*slot);
}

void DiskDirectory::touch(const Digest& domain, const Digest& name) {
  const Slot* slot = known(domain, name);
  if (slot == nullptr || is_forgotten(*slot)) return;
  Order& order = shelves_.at(domain).order;
  order.splice(order.begin(), order, slot->turn);
}

void DiskDirectory::forget(const Digest& domain, const Digest& name) {
  const Slot* slot = known(domain, name);
  if (slot != nullptr) end(static_cast<std::uint32_t>(slot - slots_.data()));
}

void DiskDirectory::begin_read(std::uint32_t slot) {
  KVD_CHECK(slots_[slot].state == State::kThere, "a slot of the disk is read that has no block");
  ++slots_[slot].readers;
}

void DiskDirectory::end_read(std::uint32_t slot, bool gone) {
  KVD_CHECK(slots_[slot].readers > 0, "a slot of the disk is read by nobody");
  --slots_[slot].readers;
  slots_[slot].ends = slots_[slot].ends || gone;
  if (is_ending(slots_[slot]) && slots_[slot].readers == 0) vacate(slot);
}

std::optional<std::uint32_t> DiskDirectory::begin_write(const Digest& domain, const Digest& name) {
  KVD_CHECK(!knows(domain, name), "a block is written to disk that is there");
  if (const Slot* left = known(domain, name)) {
    vacate(static_cast<std::uint32_t>(left - slots_.data()));
  }
  if (free_ == 0 && forgotten_ > 0) (void)sweep(kMostPassed);
  if (free_ == 0 && !make_way(domain)) return std::nullopt;
  const std::optional<std::uint32_t> slot = free_slot();
  if (slot) occupy(*slot, domain, name, State::kWriting);
  return slot;
}

void DiskDirectory::end_write(std::uint32_t slot, bool ok, std::uint64_t generation) {
  Slot& written = slots_[slot];
  KVD_CHECK(written.state == State::kWriting, "a slot of the disk is not being written");
  if (!ok || is_ending(written)) return vacate(slot);
  written.state = State::kThere;
  written.generation = generation;
}

bool DiskDirectory::restore(const Digest& domain, const Digest& name, const Place& place) {
  if (place.slot >= bound_ || slots_[place.slot].state != State::kFree) return false;
  if (const Slot* other = known(domain, name)) {
    const bool older = other->state == State::kThere && other->readers == 0;
    if (!older || other->generation >= place.generation) return false;
    vacate(static_cast<std::uint32_t>(other - slots_.data()));
  }
  occupy(place.slot, domain, name, State::kThere);
  slots_[place.slot].generation = place.generation;
  // Nobody has asked for it yet: it goes before what this run has written.
  Order& order = shelves_.at(domain).order;
  order.splice(order.end(), order, slots_[place.slot].turn);
  return true;
}

void DiskDirectory::clear() {
  ++clears_;
  forgotten_ = bound_ - free_;
  unswept_ = static_cast<std::uint32_t>(slots_.size());
}

// From the end: the search for a free slot goes on at the last that became free, towards those
// before it.
bool DiskDirectory::sweep(std::size_t most) {
  for (; unswept_ > 0 && most > 0; --most) {
    const std::uint32_t slot = --unswept_;
    if (slot >= slots_.size() || !is_left(slots_[slot])) continue;
    vacate(slot);
    next_ = slot;
  }
  return unswept_ > 0;
}

void DiskDirectory::grow(std::uint32_t slots) {
  if (slots <= slots_.size()) return;
  free_ += slots - slots_.size();
  slots_.resize(slots);
  bound_ = slots;
}

void DiskDirectory::bound(std::uint32_t slots) {
  for (std::uint32_t slot = std::min(slots, bound_); slot < bound_; ++slot) {
    if (is_in_use(slot)) end(slot);
    if (!is_in_use(slot)) {
      --free_;
    } else if (is_forgotten(slots_[slot])) {
      --forgotten_;
    }
  }
  bound_ = std::min(slots, bound_);
}

bool DiskDirectory::cut() {
  for (std::uint32_t slot = bound_; slot < slots_.size(); ++slot) {
    if (is_in_use(slot)) return false;
  }
  slots_.resize(bound_);
  return true;
}

void DiskDirectory::occupy(std::uint32_t slot, const Digest& domain, const Digest& name,
                           State state) {
  Shelf& shelf = shelves_[domain];
  shelf.by_name[name] = slot;
  shelf.order.push_front(slot);
  slots_[slot] = {domain, name, 0, shelf.order.begin(), 0, state, false, clears_};
  if (slot < bound_) --free_;
}

void DiskDirectory::vacate(std::uint32_t slot) {
  const auto shelf = shelves_.find(slots_[slot].domain);
  shelf->second.by_name.erase(slots_[slot].name);
  shelf->second.order.erase(slots_[slot].turn);
  if (shelf->second.order.empty()) shelves_.erase(shelf);
  const bool forgotten = is_forgotten(slots_[slot]);
  slots_[slot] = {};
  if (slot >= bound_) return;
  ++free_;
  if (forgotten) --forgotten_;
}

void DiskDirectory::end(std::uint32_t slot) {
  slots_[slot].ends = true;
  if (slots_[slot].state == State::kThere && slots_[slot].readers == 0) vacate(slot);
}

std::optional<std::uint32_t> DiskDirectory::free_slot() {
  for (std::uint32_t looked = 0; looked < bound_ && free_ > 0; ++looked) {
    const std::uint32_t slot = next_ % bound_;
    next_ = (slot + 1) % bound_;
    if (slots_[slot].state == State::kFree) return slot;
  }
  return std::nullopt;
}

bool DiskDirectory::make_way(const Digest& domain) {
  const auto own = shelves_.find(domain);
  const std::size_t have = own == shelves_.end() ? 0 : own->second.order.size();
  const std::size_t domains = shelves_.size() + (have == 0 ? 1 : 0);
  if (have > 0 && have * domains >= bound_) return give_up_last(own->second);
  const auto most = std::max_element(
      shelves_.begin(), shelves_.end(),
      [](const auto& a, const auto& b) { return a.second.order.size() < b.second.order.size(); });
  return most != shelves_.end() && give_up_last(most->second);
}

bool DiskDirectory::give_up_last(const Shelf& shelf) {
  int passed = 0;
  for (auto slot = shelf.order.rbegin(); slot != shelf.order.rend(); ++slot) {
    if (slots_[*slot].state == State::kThere && slots_[*slot].readers == 0) {
      next_ = *slot;
      vacate(*slot);
      return true;
    }
    if (++passed == kMostPassed) break;
  }
  return false;
}

}  // namespace kvd::store
