#include "kvd/store/index/disk_directory.hpp"

#include <algorithm>

#include "ipc/vocabulary/check.hpp"

namespace kvd::store {

namespace {

/// How many slots are tried for one that may make way. No more than these are read and written at a
/// time.
constexpr int kMostPassed = 1024;

}  // namespace

DiskDirectory::DiskDirectory(std::uint32_t slots, const TableSecret& secret, Labels* labels)
    : count_(slots), by_name_(secret), labels_(labels), free_(slots), bound_(slots) {}

std::optional<std::uint32_t> DiskDirectory::known(const Digest& domain, const Digest& name) const {
  std::uint64_t probes = 0;
  const auto same = [&](EntryId id) {
    const Slot& slot = slots_[id.value - 1];
    return slot.name == name && slot.domain == domain;
  };
  const EntryId found = by_name_.find(hash(domain, name), same, probes);
  return found ? std::optional(found.value - 1) : std::nullopt;
}

std::optional<DiskDirectory::Place> DiskDirectory::find(const Digest& domain,
                                                        const Digest& name) const {
  const auto at = known(domain, name);
  if (!at || slots_[*at].state != State::kThere || is_ending(slots_[*at])) return std::nullopt;
  return Place{*at, slots_[*at].generation};
}

bool DiskDirectory::knows(const Digest& domain, const Digest& name) const {
  const auto at = known(domain, name);
  return at && !is_left(slots_[*at]);
}

void DiskDirectory::touch(const Digest& domain, const Digest& name) {
  const auto at = known(domain, name);
  if (!at || is_forgotten(slots_[*at])) return;
  Order& order = orders_.at(domain);
  order.splice(order.begin(), order, slots_[*at].turn);
}

void DiskDirectory::forget(const Digest& domain, const Digest& name) {
  if (const auto at = known(domain, name)) end(*at);
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
  if (const auto left = known(domain, name)) vacate(*left);
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
  tell(written, true);
}

bool DiskDirectory::restore(const Digest& domain, const Digest& name, const Place& place) {
  if (place.slot >= bound_ || is_in_use(place.slot)) return false;
  if (const auto at = known(domain, name)) {
    const Slot& other = slots_[*at];
    const bool older = other.state == State::kThere && other.readers == 0;
    if (!older || other.generation >= place.generation) return false;
    vacate(*at);
  }
  occupy(place.slot, domain, name, State::kThere);
  slots_[place.slot].generation = place.generation;
  // No request has asked for it yet, so it makes way before the blocks that this run has written.
  Order& order = orders_.at(domain);
  order.splice(order.end(), order, slots_[place.slot].turn);
  tell(slots_[place.slot], true);
  return true;
}

void DiskDirectory::clear() {
  ++clears_;
  forgotten_ = bound_ - free_;
  unswept_ = static_cast<std::uint32_t>(slots_.size());
}

// Goes from the end: the search for a free slot starts at the last one that became free, and moves
// towards those before it.
bool DiskDirectory::sweep(std::size_t most) {
  for (; unswept_ > 0 && most > 0; --most) {
    const std::uint32_t slot = --unswept_;
    if (!is_in_use(slot) || !is_left(slots_[slot])) continue;
    vacate(slot);
    next_ = slot;
  }
  return unswept_ > 0;
}

void DiskDirectory::grow(std::uint32_t slots) {
  if (slots <= count_) return;
  free_ += slots - count_;
  count_ = bound_ = slots;
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
  for (std::uint32_t slot = bound_; slot < count_; ++slot) {
    if (is_in_use(slot)) return false;
  }
  count_ = bound_;
  return true;
}

void DiskDirectory::occupy(std::uint32_t slot, const Digest& domain, const Digest& name,
                           State state) {
  slots_.grow(std::size_t{slot} + 1);
  by_name_.insert(hash(domain, name), entry(slot));
  Order& order = orders_[domain];
  order.push_front(slot);
  slots_[slot] = {domain, name, 0, order.begin(), 0, state, false, clears_};
  if (slot < bound_) --free_;
}

void DiskDirectory::vacate(std::uint32_t slot) {
  Slot& gone = slots_[slot];
  if (gone.state == State::kThere) tell(gone, false);
  by_name_.erase(hash(gone.domain, gone.name), entry(slot));
  const auto order = orders_.find(gone.domain);
  order->second.erase(gone.turn);
  if (order->second.empty()) orders_.erase(order);
  const bool forgotten = is_forgotten(gone);
  gone = {};
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
    if (!is_in_use(slot)) return slot;
  }
  return std::nullopt;
}

bool DiskDirectory::make_way(const Digest& domain) {
  const auto own = orders_.find(domain);
  const std::size_t have = own == orders_.end() ? 0 : own->second.size();
  const std::size_t domains = orders_.size() + (have == 0 ? 1 : 0);
  if (have > 0 && have * domains >= bound_) return give_up_last(own->second);
  const auto most = std::max_element(
      orders_.begin(), orders_.end(),
      [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  return most != orders_.end() && give_up_last(most->second);
}

bool DiskDirectory::give_up_last(const Order& order) {
  int passed = 0;
  for (auto slot = order.rbegin(); slot != order.rend(); ++slot) {
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
