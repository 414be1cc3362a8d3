// Random histories of blocks, some of which several tables name, against a model that knows of each
// row who names it, and of each block which tiers have it. What Blocks sums up, the model counts
// anew each time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <set>
#include <utility>

#include "kvd/store/blocks/blocks.hpp"
#include "tests/unit/kvd/store/store_fixture.hpp"

namespace kvd::store {
namespace {

using pool::SlotState;

constexpr std::uint32_t kModelGroups = 2;
constexpr std::array<Tier, kTiers> kTwoTiers = {Tier::kHbm, Tier::kDram};

struct NaiveBlock {
  std::array<SlotState, kTiers> at{};  ///< free: the tier does not have it
  bool sealed = false;

  [[nodiscard]] bool in(std::size_t tier) const { return at[tier] != SlotState::kFree; }
  [[nodiscard]] bool doubled() const { return in(0) && in(1); }
  [[nodiscard]] bool arriving() const { return doubled() && at[0] == SlotState::kFilling; }
};
/// The blocks of all groups for the same tokens.
struct NaiveRow {
  std::array<NaiveBlock, kModelGroups> blocks;
  std::set<std::size_t> owners;  ///< numbers of tables
  RowId id;                      ///< none: no key
  std::uint32_t number = 0;
};
using NaiveRows = std::vector<std::shared_ptr<NaiveRow>>;

/// What a reader of a table can learn of one of its blocks.
struct Seen {
  BlockId id;
  std::array<SlotId, kTiers> at;
  bool missing, synced, shared;
  friend bool operator==(const Seen&, const Seen&) = default;
};

class BlocksModel : public StoreTest {
 protected:
  Blocks sut{tiers};
  std::array<BlockTable, 3> tables{BlockTable(kModelGroups), BlockTable(kModelGroups),
                                   BlockTable(kModelGroups)};
  std::array<NaiveRows, 3> naive;  ///< by table
  NaiveRows cached;
  std::set<RowId> moved;
  std::uint32_t keys = 0;
  std::mt19937_64 random{
      static_cast<std::uint64_t>(::testing::UnitTest::GetInstance()->random_seed())};

  std::size_t any(std::size_t count) { return static_cast<std::size_t>(random() % count); }
  [[nodiscard]] bool has_room(Tier tier) const {
    return tiers.pool(tier).available(kA) >= kSlot * kModelGroups;
  }
  SlotId take_one(Tier tier) { return tier == Tier::kHbm ? taken(1)[0] : taken_in_dram(1)[0]; }
  NaiveBlock& block(std::size_t table, std::uint32_t i) {
    return naive[table][i / kModelGroups]->blocks[i % kModelGroups];
  }
  void note_move(std::size_t table, std::uint32_t i) {
    const RowId row = naive[table][i / kModelGroups]->id;
    if (row) moved.insert(row);
  }
  void free(const SlotsByTier& slots) {
    for (const Tier tier : kTwoTiers) tiers.free(tier, slots[static_cast<std::size_t>(tier)]);
  }

  void grow(std::size_t t) {
    if (tables[t].blocks() >= 3 || !has_room(Tier::kHbm)) return;
    std::uint32_t i = tables[t].size();
    sut.extend(tables[t], taker(), kModelGroups);
    auto row = std::make_shared<NaiveRow>();
    row->owners = {t};
    row->number = i / kModelGroups;
    for (NaiveBlock& each : row->blocks) {
      each.at[0] = SlotState::kFilling;
      sut.place(tables[t], i++, Tier::kHbm, taken(1)[0]);
    }
    naive[t].push_back(std::move(row));
  }
  /// The bytes of a block are complete where it is.
  void settle(std::size_t t, std::uint32_t i) {
    NaiveBlock& one = block(t, i);
    const std::size_t tier = one.doubled() ? any(2) : one.in(0) ? 0 : 1;
    one.sealed = one.sealed || any(2) == 0;
    const SlotState then = one.sealed ? SlotState::kSealed : SlotState::kOpen;
    if (std::exchange(one.at[tier], then) != then) note_move(t, i);
    sut.settle(tables[t], i, kTwoTiers[tier], one.sealed);
  }
  /// A block goes to the tier that lacks it, or leaves one of two.
  void move(std::size_t t, std::uint32_t i) {
    NaiveBlock& one = block(t, i);
    const std::size_t tier = one.doubled() ? any(2) : one.in(0) ? 1 : 0;
    if (one.doubled()) {
      one.at[tier] = SlotState::kFree;
      tiers.free(kTwoTiers[tier], {sut.vacate(tables[t], i, kTwoTiers[tier])});
    } else if (has_room(kTwoTiers[tier])) {
      one.at[tier] = SlotState::kFilling;
      sut.place(tables[t], i, kTwoTiers[tier], take_one(kTwoTiers[tier]));
    } else {
      return;
    }
    note_move(t, i);
  }
  /// Within DRAM, as compaction does.
  void relocate(std::size_t t, std::uint32_t i) {
    const SlotState state = block(t, i).at[1];
    const bool settled = state == SlotState::kOpen || state == SlotState::kSealed;
    if (!settled || !has_room(Tier::kDram)) return;
    tiers.free(Tier::kDram, {sut.relocate(tables[t], i, Tier::kDram, taken_in_dram(1)[0])});
  }
  void name(std::size_t t, std::uint32_t number) {
    NaiveRow& row = *naive[t][number];
    const bool sealed = std::all_of(row.blocks.begin(), row.blocks.end(),
                                    [](const NaiveBlock& each) { return each.sealed; });
    if (row.id || !sealed) return;
    row.id = sut.name(tables[t], number, EntryId(++keys));
    moved.insert(row.id);
  }
  /// A row that has a key, of another table or cached, becomes the next one of this table.
  void share(std::size_t t) {
    NaiveRows known = cached;
    for (const NaiveRows& rows : naive) known.insert(known.end(), rows.begin(), rows.end());
    std::erase_if(known, [&](const auto& row) {
      return !row->id || row->number != tables[t].blocks() || row->owners.contains(t);
    });
    if (known.empty()) return;
    const auto row = known[any(known.size())];
    sut.share(tables[t], row->id);
    row->owners.insert(t);
    naive[t].push_back(row);
    std::erase(cached, row);
  }
  void truncate(std::size_t t, std::uint32_t kept) {
    free(sut.truncate(tables[t], kept));
    while (naive[t].size() > kept) {
      const auto row = naive[t].back();
      naive[t].pop_back();
      row->owners.erase(t);
      if (row->id && row->owners.empty()) cached.push_back(row);
    }
  }
  void leave_cache() {
    if (cached.empty()) return;
    std::swap(cached[any(cached.size())], cached.back());
    NaiveRow& row = *cached.back();
    const bool doubled = std::all_of(row.blocks.begin(), row.blocks.end(),
                                     [](const NaiveBlock& each) { return each.doubled(); });
    if (doubled && any(2) == 0) {
      const std::size_t tier = any(2);
      tiers.free(kTwoTiers[tier], sut.vacate(row.id, kTwoTiers[tier]));
      for (NaiveBlock& each : row.blocks) each.at[tier] = SlotState::kFree;
      moved.insert(row.id);
    } else {
      moved.erase(row.id);
      free(sut.release(row.id));
      cached.pop_back();
    }
  }
  /// All parked blocks leave HBM where they may.
  void leave_parked(std::size_t t) {
    for (const auto& row : NaiveRows(naive[t])) {
      if (!row->id) continue;
      const bool wanted = std::any_of(row->owners.begin(), row->owners.end(),
                                      [&](std::size_t owner) { return !tables[owner].parked(); });
      const bool whole =
          std::all_of(row->blocks.begin(), row->blocks.end(),
                      [](const NaiveBlock& each) { return each.at[1] == SlotState::kSealed; });
      ASSERT_EQ(wanted_in_hbm(sut.row(row->id)), wanted);
      const std::vector<SlotId> slots = vacate_parked(sut, row->id);
      tiers.free(Tier::kHbm, slots);
      if (wanted || !whole) {
        ASSERT_TRUE(slots.empty());
        continue;
      }
      for (NaiveBlock& each : row->blocks) each.at[0] = SlotState::kFree;
      if (!slots.empty()) moved.insert(row->id);
    }
  }

  [[nodiscard]] std::vector<Seen> picture(const BlockTable& table) const {
    std::vector<Seen> seen;
    for (std::uint32_t i = 0; i < table.size(); ++i) {
      seen.push_back({table[i], sut.block(table[i]).at, sut.missing(table, i), sut.synced(table, i),
                      sut.shared(table, i)});
    }
    return seen;
  }
  void compare_table(std::size_t t) {
    const BlockTable& table = tables[t];
    std::array<std::int64_t, kTiers> in{};
    std::array<std::int64_t, kModelGroups> alone{};
    std::int64_t doubled = 0, arriving = 0;
    ASSERT_EQ(table.blocks(), naive[t].size());
    for (std::uint32_t i = 0; i < table.size(); ++i) {
      const NaiveBlock& one = block(t, i);
      const std::size_t owners = naive[t][i / kModelGroups]->owners.size();
      for (std::size_t tier = 0; tier < kTiers; ++tier) {
        in[tier] += one.in(tier) ? 1 : 0;
        ASSERT_EQ(sut.has(table, i, kTwoTiers[tier]), one.in(tier));
      }
      doubled += one.doubled() ? 1 : 0;
      arriving += one.arriving() ? 1 : 0;
      alone[i % kModelGroups] += one.doubled() && owners == 1 ? 1 : 0;
      ASSERT_EQ(sut.arriving(table, i), one.arriving());
      ASSERT_EQ(sut.shared(table, i), owners > 1);
    }
    for (const Tier tier : kTwoTiers) {
      ASSERT_EQ(table.in(tier), in[static_cast<std::size_t>(tier)]);
    }
    ASSERT_EQ(table.doubled(), doubled);
    ASSERT_EQ(table.arriving(), arriving);
    for (std::uint32_t group = 0; group < kModelGroups; ++group) {
      ASSERT_EQ(table.doubled_alone(group), alone[group]);
    }
    ASSERT_EQ(table.doubled_alone(), alone[0] + alone[1]);
  }
  void compare_sums() {
    Usage usage;
    std::size_t references = 0;
    std::set<const NaiveRow*> counted;
    const auto count = [&](const NaiveRow& row) {
      if (!counted.insert(&row).second) return;
      for (const NaiveBlock& each : row.blocks) {
        ++usage.blocks;
        references += row.owners.size();
        for (std::size_t tier = 0; tier < kTiers; ++tier) {
          auto& sum = row.owners.empty() ? usage.cached : usage.owned;
          if (each.in(tier)) sum[tier] += kSlot;
        }
      }
    };
    for (const auto& row : cached) count(*row);
    for (const NaiveRows& rows : naive) {
      for (const auto& row : rows) count(*row);
    }
    ASSERT_EQ(sut.usage(kA), usage);
    ASSERT_EQ(sut.references(), references);
    for (std::size_t tier = 0; tier < kTiers; ++tier) {
      ASSERT_EQ(kSlot * static_cast<std::int64_t>(sut.slots(kTwoTiers[tier])),
                usage.owned[tier] + usage.cached[tier]);
      ASSERT_EQ(sut.cached(kA, kTwoTiers[tier], kDevice), usage.cached[tier]);
    }
  }
  void step() {
    const std::size_t t = any(tables.size());
    BlockTable& table = tables[t];
    const auto i = table.empty() ? 0 : static_cast<std::uint32_t>(any(table.size()));
    switch (any(11)) {
      case 0:
      case 1:
        return grow(t);
      case 2:
        return truncate(t, static_cast<std::uint32_t>(any(table.blocks() + 1)));
      case 3:
        return share(t);
      case 4:
        return leave_cache();
      case 5:
        table.set_parked(any(2) == 0);
        return leave_parked(t);
      default:
        break;
    }
    if (table.empty()) return;
    switch (any(5)) {
      case 0:
        return relocate(t, i);
      case 1:
        return move(t, i);
      case 2:
        return name(t, i / kModelGroups);
      default:
        return settle(t, i);
    }
  }
};

TEST_F(BlocksModel, RandomHistoriesAgreeWithIt) {
  SCOPED_TRACE("seed " + std::to_string(::testing::UnitTest::GetInstance()->random_seed()));
  std::size_t shared = 0, parked = 0;
  for (int round = 0; round < 4000 && !HasFatalFailure(); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    std::array<std::vector<Seen>, 3> before;
    std::array<std::uint64_t, 3> changes{};
    for (std::size_t t = 0; t < tables.size(); ++t) {
      before[t] = picture(tables[t]);
      changes[t] = tables[t].changes();
    }
    step();
    for (std::size_t t = 0; t < tables.size() && !HasFatalFailure(); ++t) {
      compare_table(t);
      ASSERT_EQ(sut.validate(tables[t]), "");
      if (picture(tables[t]) != before[t]) {
        ASSERT_GT(tables[t].changes(), changes[t]) << "table " << t;
      }
      if (tables[t].blocks() > 0 && sut.shared(tables[t], 0)) ++shared;
      if (tables[t].parked()) ++parked;
    }
    if (!HasFatalFailure()) compare_sums();
    ASSERT_EQ(sut.validate(), "");
    ASSERT_EQ(tiers.validate(), "");
    const std::vector<RowId> said = sut.take_moved();
    for (const RowId row : moved) ASSERT_THAT(said, ::testing::Contains(row));
    moved.clear();
  }
  EXPECT_GT(shared, 100u) << "the histories are to reach what several tables name";
  EXPECT_GT(parked, 100u);
}

}  // namespace
}  // namespace kvd::store
