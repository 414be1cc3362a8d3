#include <algorithm>
#include <map>

#include "kvd/store/blocks/blocks.hpp"

namespace kvd::store {

std::string Blocks::validate() const {
  std::array<std::size_t, kTiers> in{};
  std::map<Holder, Usage> usage;
  std::size_t unused = 0, references = 0;
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    const Block& block = blocks_[b];
    references += block.owners;
    if (block.owners == 0 && !block.row) {
      ++unused;
      continue;
    }
    const BlockKind& kind = kinds_[b];
    Usage& of = usage[{kind.domain, kind.model_class}];
    ++of.blocks;
    for (std::size_t tier = 0; tier < kTiers; ++tier) {
      if (block.at[tier].none()) continue;
      ++in[tier];
      (block.owners > 0 ? of.owned : of.cached)[tier] += kind.slot_bytes;
    }
  }
  if (in != in_ || unused != unused_.size() || references != references_ || usage != usage_) {
    return "blocks are not counted right";
  }
  return fault_of_rows();
}

std::string Blocks::fault_of_rows() const {
  std::size_t unused = 0;
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    const Row& row = rows_[r];
    if (!row.key) {
      ++unused;
      continue;
    }
    for (const BlockId each : row.blocks) {
      const Block& one = block(each);
      if (one.row != RowId(static_cast<std::uint32_t>(r + 1))) return "a row has others' blocks";
      if (one.owners != row.owners.size()) return "a shared block counts its owners wrong";
      if (!one.sealed) return "a block that may change has a key";
    }
    for (const BlockTable* owner : row.owners) {
      const auto found =
          std::search(owner->ids_.begin(), owner->ids_.end(), row.blocks.begin(), row.blocks.end());
      const bool whole =
          found != owner->ids_.end() && (found - owner->ids_.begin()) % std::ssize(row.blocks) == 0;
      if (!whole) return "a row has an owner that does not name it";
    }
  }
  return unused == unused_rows_.size() ? std::string() : "rows are not counted right";
}

std::string Blocks::validate(const BlockTable& table) const {
  BlockTable counted(table.groups_);
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    const Block& found = block(table[i]);
    counted.append(table[i]);
    if (found.row && i >= table.keyed_) return "a block has a key that its table does not tell of";
    if (!found.row && found.owners != 1) {
      return "a block has another number of owners than tables name it";
    }
    if (found.row) {
      const auto& owners = row(found.row).owners;
      if (std::count(owners.begin(), owners.end(), &table) != 1) {
        return "a table names a shared block and is none of its owners";
      }
    }
    if (found.at[0].none() && found.at[1].none()) return "a block is in no tier";
    for (std::size_t tier = 0; tier < kTiers; ++tier) {
      counted.in_[tier] += found.at[tier].none() ? 0 : 1;
    }
    if (found.in_all_tiers()) counted.count_doubled(i, 1, found.owners == 1);
    if (is_arriving(tiers_, found)) ++counted.arriving_;
  }
  const bool right = counted.in_ == table.in_ && counted.doubled_ == table.doubled_ &&
                     counted.doubled_alone_ == table.doubled_alone_ &&
                     counted.alone_of_ == table.alone_of_ && counted.arriving_ == table.arriving_ &&
                     counted.neighbours_ == table.neighbours_;
  return right ? std::string() : "a block table's slots are not counted right";
}

}  // namespace kvd::store
