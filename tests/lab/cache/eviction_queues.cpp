#include "tests/lab/cache/eviction_queues.hpp"

#include <algorithm>
#include <cstring>

namespace kvd::sim {
namespace {

template <class Mark>
Mark& mark_of(std::vector<Mark>& marks, EntryId id) {
  if (id.value >= marks.size()) marks.resize(id.value + 1);
  return marks[id.value];
}

}  // namespace

// ---- SIEVE ----

void SieveEviction::added(EntryId id) {
  mark_of(marks_, id) = {};
  marks_[id.value].arrived = true;
}

void SieveEviction::touched(EntryId id) { marks_[id.value].touched = true; }

void SieveEviction::removed(EntryId id) {
  if (queue_.contains(id)) unlink(id);
}

void SieveEviction::may_leave(EntryId id) {
  Mark& mark = marks_[id.value];
  mark.may_leave = true;
  ++size_;
  if (queue_.contains(id)) return;
  if (mark.arrived) {
    queue_.insert(id);
    mark.arrived = false;
  } else {
    queue_.insert(id, hand_ ? hand_ : queue_.oldest());
    hand_ = id;
  }
}

void SieveEviction::must_stay(EntryId id) {
  marks_[id.value].may_leave = false;
  --size_;
  if (entries_[id].leases == 0) unlink(id);
}

void SieveEviction::unlink(EntryId id) {
  if (hand_ == id) hand_ = queue_.newer(id);
  queue_.erase(id);
}

EntryId SieveEviction::victim() {
  while (size_ > 0) {
    if (!hand_) hand_ = queue_.oldest();
    const EntryId id = hand_;
    Mark& mark = marks_[id.value];
    if (mark.may_leave && !mark.touched) return id;
    hand_ = queue_.newer(id);
    if (mark.may_leave) {
      mark.touched = false;
    } else if (entries_[id].leases == 0) {
      queue_.erase(id);  // a child came while the block was leased
    }
  }
  return {};
}

// ---- S3-FIFO ----

std::uint64_t S3FifoEviction::ghost(EntryId id) const {
  // The space is included, so that no domain can tell from it what another one has.
  const Entry& entry = entries_[id];
  std::uint64_t word = 0;
  std::memcpy(&word, entry.digest.bytes.data(), sizeof word);
  return word ^ entry.space.value * 0x9e3779b97f4a7c15ull;
}

void S3FifoEviction::remember(std::uint64_t ghost) {
  ghosts_.push_back(ghost);
  ++ghost_count_[ghost];
  while (ghosts_.size() > std::max<std::size_t>(in_main_, kSmallShare)) {
    const auto oldest = ghost_count_.find(ghosts_.front());
    if (--oldest->second == 0) ghost_count_.erase(oldest);
    ghosts_.pop_front();
  }
}

void S3FifoEviction::added(EntryId id) {
  mark_of(marks_, id) = {};
  Mark& mark = marks_[id.value];
  mark.arrived = true;
  mark.in_main = ghost_count_.contains(ghost(id));
  in_main_ += mark.in_main ? 1 : 0;
}

void S3FifoEviction::touched(EntryId id) {
  std::uint8_t& touches = marks_[id.value].touches;
  touches = std::min<std::uint8_t>(kMostTouches, static_cast<std::uint8_t>(touches + 1));
}

void S3FifoEviction::removed(EntryId id) {
  Mark& mark = marks_[id.value];
  if (part(mark).queue.contains(id)) part(mark).queue.erase(id);
  if (mark.in_main) {
    --in_main_;
  } else {
    remember(ghost(id));
  }
}

void S3FifoEviction::may_leave(EntryId id) {
  victim_ = {};
  Mark& mark = marks_[id.value];
  mark.may_leave = true;
  ++part(mark).may_leave;
  IdQueue& queue = part(mark).queue;
  if (!queue.contains(id)) queue.insert(id, mark.arrived ? EntryId() : queue.oldest());
  mark.arrived = false;
}

void S3FifoEviction::must_stay(EntryId id) {
  victim_ = {};
  Mark& mark = marks_[id.value];
  mark.may_leave = false;
  --part(mark).may_leave;
  if (entries_[id].leases == 0) part(mark).queue.erase(id);
}

bool S3FifoEviction::passed(Part& part, EntryId id) {
  if (marks_[id.value].may_leave) return false;
  part.queue.erase(id);
  if (entries_[id].leases > 0) part.queue.insert(id);  // otherwise a child came while it was leased
  return true;
}

EntryId S3FifoEviction::victim_of_small() {
  while (small_.may_leave > 0) {
    const EntryId id = small_.queue.oldest();
    if (passed(small_, id)) continue;
    Mark& mark = marks_[id.value];
    if (mark.touches < 2) return id;
    mark.touches = 0;
    mark.in_main = true;
    ++in_main_;
    --small_.may_leave, ++main_.may_leave;
    small_.queue.erase(id);
    main_.queue.insert(id);
  }
  return {};
}

EntryId S3FifoEviction::victim_of_main() {
  while (main_.may_leave > 0) {
    const EntryId id = main_.queue.oldest();
    if (passed(main_, id)) continue;
    Mark& mark = marks_[id.value];
    if (mark.touches == 0) return id;
    --mark.touches;
    main_.queue.erase(id);
    main_.queue.insert(id);
  }
  return {};
}

EntryId S3FifoEviction::victim() {
  if (victim_) return victim_;
  if (kSmallShare * small_.may_leave >= size()) victim_ = victim_of_small();
  if (!victim_) victim_ = victim_of_main();
  if (!victim_) victim_ = victim_of_small();
  return victim_;
}

std::size_t S3FifoEviction::allocated_bytes() const {
  // A node of the map: link, hash and value, as libstdc++ has it.
  constexpr std::size_t kNode = 3 * sizeof(std::uint64_t);
  return small_.queue.allocated_bytes() + main_.queue.allocated_bytes() +
         marks_.capacity() * sizeof(Mark) + ghosts_.size() * (sizeof(std::uint64_t) + kNode);
}

}  // namespace kvd::sim
