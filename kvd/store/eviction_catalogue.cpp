#include "kvd/store/eviction_catalogue.hpp"

#include <cstdint>
#include <string_view>
#include <vector>

#include "kvd/store/eviction_queues.hpp"
#include "kvd/store/id_heap.hpp"

namespace kvd::store {
namespace {

/// A policy that says of a block by how much it is wanted, as a number. That changes only while
/// somebody leases the block, when it may not leave: whoever finds or stores it does. Blocks whose
/// numbers change together are a group.
class RankedEviction : public Eviction {
 public:
  void may_leave(EntryId id) final { heap_.insert(id, rank(id), group(id)); }
  void must_stay(EntryId id) final { heap_.erase(id, group(id)); }
  [[nodiscard]] EntryId victim() override { return heap_.least(); }
  [[nodiscard]] bool may(EntryId id) const final { return heap_.contains(id); }
  [[nodiscard]] std::size_t size() const final { return heap_.size(); }
  [[nodiscard]] std::size_t allocated_bytes() const override { return heap_.allocated_bytes(); }

 protected:
  [[nodiscard]] const IdHeap& heap() const { return heap_; }

 private:
  [[nodiscard]] virtual double rank(EntryId id) const = 0;
  [[nodiscard]] virtual std::uint32_t group(EntryId) const { return 0; }
  IdHeap heap_;
};

/// Source: kvd; the product of GreedyDual-Size-Frequency (Cherkasova, HP Labs, 1998), with a
/// frequency that decays by itself in place of the cache's age. All factors are logarithms. A
/// victim costs O(spaces): what computing costs is learned while blocks are cached, and moves all
/// blocks of a space at once.
class SavedTimeEviction final : public RankedEviction {
 public:
  explicit SavedTimeEviction(const Entries& entries) : entries_(entries) {}
  [[nodiscard]] std::string_view name() const override {
    return store::name(EvictionKind::kSavedTime);
  }
  [[nodiscard]] bool minds_touches() const override { return false; }
  void costs(SpaceId space, double log2_times) override {
    if (space.value >= costs_.size()) costs_.resize(space.value + 1);
    costs_[space.value] = log2_times;
  }
  [[nodiscard]] EntryId victim() override {
    EntryId victim;
    double least = 0;
    for (std::uint32_t space = 0; space < heap().groups(); ++space) {
      if (heap().empty(space)) continue;
      const double cost = space < costs_.size() ? costs_[space] : 0;
      const double number = heap().least_number(space) + cost;
      const EntryId id = heap().least(space);
      if (victim && (number > least || (number == least && victim < id))) continue;
      victim = id;
      least = number;
    }
    return victim;
  }
  [[nodiscard]] std::size_t allocated_bytes() const override {
    return RankedEviction::allocated_bytes() + costs_.capacity() * sizeof(costs_[0]);
  }

 private:
  [[nodiscard]] double rank(EntryId id) const override {
    const Entry& entry = entries_[id];
    return entry.heat + double{entry.worth};
  }
  [[nodiscard]] std::uint32_t group(EntryId id) const override { return entries_[id].space.value; }

  const Entries& entries_;
  std::vector<double> costs_;  ///< by space
};

class LruEviction final : public RankedEviction {
 public:
  [[nodiscard]] std::string_view name() const override { return store::name(EvictionKind::kLru); }
  void added(EntryId id) override { touched(id); }
  void touched(EntryId id) override {
    last_.grow(std::size_t{id.value} + 1);
    last_[id.value] = ++touches_;
  }
  [[nodiscard]] std::size_t allocated_bytes() const override {
    return RankedEviction::allocated_bytes() + last_.allocated_bytes();
  }

 private:
  [[nodiscard]] double rank(EntryId id) const override {
    return static_cast<double>(last_[id.value]);
  }
  Pieces<std::uint64_t> last_;  ///< number of the last touch, by entry
  std::uint64_t touches_ = 0;
};

}  // namespace

std::unique_ptr<Eviction> make_eviction(EvictionKind kind, const Entries& entries) {
  switch (kind) {
    case EvictionKind::kLru:
      return std::make_unique<LruEviction>();
    case EvictionKind::kS3Fifo:
      return std::make_unique<S3FifoEviction>(entries);
    case EvictionKind::kSieve:
      return std::make_unique<SieveEviction>(entries);
    case EvictionKind::kSavedTime:
      break;
  }
  return std::make_unique<SavedTimeEviction>(entries);
}

}  // namespace kvd::store
