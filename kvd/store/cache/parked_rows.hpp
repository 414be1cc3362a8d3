#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "kvd/store/cache/cache.hpp"

namespace kvd::store {

/// Rows of one block that engines have parked. A table of its own names each, so that it does not
/// make way, until the last engine has given it up. Engines park hundreds of thousands of rows and
/// give them up by thousands, so everything is found by the row's number.
///
/// Source: kvd/DESIGN.md "Engines that place by themselves".
///
/// Owner: control thread. Errors: none. Cost: O(engines that have it parked) a call.
class ParkedRows {
 public:
  explicit ParkedRows(Cache& cache) : cache_(cache) {}

  /// False: the engine has it parked already. Precondition: the row is the key's, and DRAM has it.
  bool park(RowId row, const Key& key, EngineId engine);
  /// The engine gives the row up; none: all engines do. With the last one it is like any that is
  /// cached. Appends the DRAM slots that come free.
  void unpark(RowId row, std::optional<EngineId> engine, std::vector<SlotId>& free);

  [[nodiscard]] bool has(RowId row) const {
    return row.value < parked_.size() && parked_[row.value] != nullptr;
  }
  /// Some row that the engine has parked; none: it has none.
  [[nodiscard]] RowId one_of(EngineId engine) const;
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  struct Holder {
    EngineId engine;
    std::uint32_t place = 0;  ///< place of the row among those of the engine
  };
  struct Parked {
    BlockTable table{1};
    std::vector<Holder> by;
  };
  void take_out(const Holder& holder);

  Cache& cache_;
  Pieces<std::unique_ptr<Parked>> parked_;     ///< by row
  std::map<EngineId, std::vector<RowId>> of_;  ///< no empty ones
  std::size_t size_ = 0;
};

}  // namespace kvd::store
