#include "kvd/pool/free_slots.hpp"

#include <algorithm>
#include <bit>

#include "ipc/vocabulary/check.hpp"

namespace kvd::pool {
namespace {

constexpr std::uint64_t kAllFree = ~std::uint64_t{0};

}  // namespace

FreeSlots::FreeSlots(std::uint32_t slots)
    : words_((slots + kWordBits - 1) / kWordBits, kAllFree), slots_(slots), count_(slots) {
  if (slots % kWordBits != 0) words_.back() = bit(slots) - 1;
}

template <class F>
void FreeSlots::each_word(SlotRun run, F visit) {
  for (std::uint32_t at = run.first, left = run.count; left > 0;) {
    const std::uint32_t count = std::min(left, kWordBits - at % kWordBits);
    visit(at / kWordBits, kAllFree >> (kWordBits - count) << at % kWordBits);
    at += count;
    left -= count;
  }
}

void FreeSlots::put(SlotRun run) {
  KVD_CHECK(run.first < slots_ && run.count <= slots_ - run.first && !any_free(run),
            "a slot was freed twice or does not exist");
  each_word(run, [this](std::uint32_t word, std::uint64_t mask) { words_[word] |= mask; });
  first_word_ = std::min<std::size_t>(first_word_, run.first / kWordBits);
  count_ += run.count;
}

void FreeSlots::clear(SlotRun run) {
  each_word(run, [this](std::uint32_t word, std::uint64_t mask) { words_[word] &= ~mask; });
  while (first_word_ + 1 < words_.size() && words_[first_word_] == 0) ++first_word_;
}

bool FreeSlots::any_free(SlotRun run) const {
  std::uint64_t found = 0;
  each_word(run, [&](std::uint32_t word, std::uint64_t mask) { found |= words_[word] & mask; });
  return found != 0;
}

SlotRun FreeSlots::run_at(std::uint32_t from, std::uint32_t most) const {
  const std::uint32_t first = next_free(from);
  return {first, std::min(next_taken(first) - first, most)};
}

std::uint32_t FreeSlots::start_for(std::uint32_t wanted) const {
  const std::uint32_t lowest = next_free(0);
  std::uint32_t begin = lowest;
  while (begin < slots_) {
    const std::uint32_t end = next_taken(begin);
    if (end - begin >= wanted) return begin;
    begin = next_free(end);
  }
  return lowest;
}

std::uint32_t FreeSlots::next_free(std::uint32_t from) const {
  from = std::max(from, static_cast<std::uint32_t>(first_word_) * kWordBits);
  std::uint64_t mask = kAllFree << from % kWordBits;
  for (std::size_t w = from / kWordBits; w < words_.size(); ++w, mask = kAllFree) {
    if (const std::uint64_t found = words_[w] & mask; found != 0) {
      return static_cast<std::uint32_t>(w) * kWordBits +
             static_cast<std::uint32_t>(std::countr_zero(found));
    }
  }
  return slots_;
}

std::uint32_t FreeSlots::next_taken(std::uint32_t from) const {
  std::uint64_t mask = kAllFree << from % kWordBits;
  for (std::size_t w = from / kWordBits; w < words_.size(); ++w, mask = kAllFree) {
    if (const std::uint64_t found = ~words_[w] & mask; found != 0) {
      const auto index = static_cast<std::uint32_t>(w) * kWordBits +
                         static_cast<std::uint32_t>(std::countr_zero(found));
      return std::min(index, slots_);
    }
  }
  return slots_;
}

}  // namespace kvd::pool
