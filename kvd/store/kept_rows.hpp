#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "kvd/store/cache.hpp"

namespace kvd::store {

/// A row that DRAM has, with all that finding it again takes.
struct KeptRow {
  KeySpace space;
  Digest digest;
  std::optional<Digest> parent;  ///< none: it is the first of its chain
  std::uint32_t number = 0;      ///< as Row::number
  SecondsPerByte saved;
  Bytes slot_bytes;
  std::vector<SlotId> dram;  ///< by layer group
};

/// Rows that the next daemon is to find in DRAM: follows which ones are there, complete, and takes
/// over those that the daemon before has left.
///
/// Source: kvd/DESIGN.md "Blocks that outlive kvd".
///
/// Owner: control thread. Errors: none. Cost: O(layer groups) a row that changed in DRAM since the
/// last call; nothing before start().
class KeptRows {
 public:
  KeptRows(Blocks& blocks, Cache& cache) : blocks_(blocks), cache_(cache) {}

  /// Rows of before are not told.
  void start() { blocks_.touched_.start(); }
  /// Slots that were told of, and do not have what was told any more. Nothing has been written over
  /// them yet, if it is asked before an event's effects are carried out.
  [[nodiscard]] std::vector<SlotId> take_ended();
  /// A row that has come since; none: there is no other.
  [[nodiscard]] std::optional<KeptRow> next();

  /// Rows of an earlier daemon, each after its parent, in slots of Tiers::adopt. They are cached
  /// from now on, and not told. Returns those that were not taken: their parent is not there, or
  /// they are by now.
  [[nodiscard]] std::vector<KeptRow> adopt(std::vector<KeptRow> rows, TimePoint now);

 private:
  struct Told {
    std::vector<SlotId> slots;
    bool waits = true;  ///< for next()
  };
  [[nodiscard]] std::vector<SlotId> dram_of(RowId row) const;
  void end(RowId row, std::vector<SlotId>& ended);

  Blocks& blocks_;
  Cache& cache_;
  std::map<RowId, Told> told_;
  std::deque<RowId> waiting_;
};

}  // namespace kvd::store
