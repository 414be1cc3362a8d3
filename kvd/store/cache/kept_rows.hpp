#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "kvd/store/cache/cache.hpp"

namespace kvd::store {

/// A row that a tier has, with all that finding it again takes.
struct KeptRow {
  KeySpace space;
  Digest digest;
  std::optional<Digest> parent;  ///< none: it is the first of its chain
  std::uint32_t number = 0;      ///< as Row::number
  SecondsPerByte saved;
  Bytes slot_bytes;
  Tier tier = Tier::kDram;    ///< DRAM, or HBM if only that has it
  std::vector<SlotId> slots;  ///< there, by layer group
};

/// Rows that the next daemon is to find: follows which ones a tier has, complete, and takes over
/// those that the daemon before has left. A row that DRAM has is told as DRAM's alone.
///
/// Source: kvd/DESIGN.md "Blocks that outlive kvd".
///
/// Owner: control thread. Errors: none. Cost: O(layer groups) a row that changed in a tier since
/// the last call; nothing before start().
class KeptRows {
 public:
  KeptRows(Blocks& blocks, Cache& cache) : blocks_(blocks), cache_(cache) {}

  /// Rows that exist already are not told. `hbm`: tell rows that only HBM has as well.
  void start(bool hbm) {
    hbm_ = hbm;
    blocks_.touched_.start();
  }
  /// Slots that were told and no longer hold what was told, or whose record is not needed any more.
  /// Asked before an event's effects are carried out, nothing has been written over them yet.
  [[nodiscard]] SlotsByTier take_ended(TimePoint now);
  /// The next row that has come since, rows of DRAM first; none: there is no other. Rows that only
  /// HBM has count if it has had them since `hbm_by`. A row of HBM does not make way before
  /// all_read().
  [[nodiscard]] std::optional<KeptRow> next(TimePoint hbm_by);
  /// The rows that next() gave have been written down. True: some may make way from now on.
  [[nodiscard]] bool all_read();

  /// Rows of an earlier daemon, each after its parent, in slots of store::adopt(). They are cached
  /// from now on, and not told. Returns the rows that were not taken, because their parent is
  /// missing or because they are cached already.
  [[nodiscard]] std::vector<KeptRow> adopt(std::vector<KeptRow> rows, TimePoint now);

 private:
  struct Copy {
    Tier tier = Tier::kDram;
    std::vector<SlotId> slots;  ///< empty: no tier has all of it
    friend bool operator==(const Copy&, const Copy&) = default;
  };
  struct Told {
    Copy copy;
    TimePoint since{0};
    bool waits = true;  ///< for next()
  };
  [[nodiscard]] Copy copy_of(RowId row) const;
  void end(RowId row, SlotsByTier& ended);
  [[nodiscard]] KeptRow describe(RowId row, const Copy& copy);

  Blocks& blocks_;
  Cache& cache_;
  bool hbm_ = false;
  std::map<RowId, Told> told_;
  std::array<std::deque<RowId>, kTiers> waiting_;
  std::vector<std::pair<DomainId, EntryId>> read_;  ///< since the last all_read()
};

}  // namespace kvd::store
