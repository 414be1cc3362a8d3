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

std::vector<std::uint32_t> FreeSlots::take(std::uint32_t wanted) {
  KVD_CHECK(wanted <= count_, "more slots taken from a slab than it has free");
  std::vector<std::uint32_t> taken;
  taken.reserve(wanted);
  if (wanted == 0) return taken;
  const std::uint32_t start = start_for(wanted);
  std::uint64_t mask = kAllFree << start % kWordBits;
  for (std::size_t w = start / kWordBits; taken.size() < wanted; ++w, mask = kAllFree) {
    std::uint64_t& word = words_[w];
    for (std::uint64_t left = word & mask; left != 0 && taken.size() < wanted; left &= left - 1) {
      const auto lowest = static_cast<std::uint32_t>(std::countr_zero(left));
      word &= ~bit(lowest);
      taken.push_back(static_cast<std::uint32_t>(w) * kWordBits + lowest);
    }
  }
  count_ -= wanted;
  while (first_word_ + 1 < words_.size() && words_[first_word_] == 0) ++first_word_;
  return taken;
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
