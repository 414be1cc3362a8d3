#pragma once

#include <cstddef>
#include <optional>

#include "kvd/store/cache/cache.hpp"

namespace kvd::store {

/// Offers all cached rows, the latest used first: Cache::next_for_disk() names those that DRAM has,
/// Cache::next_alone() those that HBM alone has. While it lives, the rule admits each row.
///
/// Source: kvd design. Owner: control thread. Errors: none. Cost: as said per call.
class AllRows {
 public:
  explicit AllRows(Cache& cache);
  ~AllRows();
  AllRows(const AllRows&) = delete;
  AllRows& operator=(const AllRows&) = delete;

  /// Offers the next few, once those before are named. Cost: bounded.
  void offer();
  /// All were offered, and those in DRAM were named.
  [[nodiscard]] bool over() const { return over_ && waiting() == 0; }
  /// Rows that were not offered yet, or not named, at most. Cost: O(domains).
  [[nodiscard]] std::size_t left() const;

 private:
  /// Rows of DRAM that are not named yet.
  [[nodiscard]] std::size_t waiting() const;

  Cache& cache_;
  const std::optional<SecondTouch> rule_;  ///< of before
  bool over_ = false;
  std::size_t rows_ = 0;  ///< that it has offered
  std::size_t pass_ = 0;
  DomainId domain_{0};  ///< where it looks next
  EntryId entry_{0};
};

}  // namespace kvd::store
