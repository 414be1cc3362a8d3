#include "kvd/core/keeping.hpp"

#include <algorithm>
#include <optional>
#include <string>

namespace kvd::core {

namespace {

/// Rows that are written down at a time: their slots are not free before that has ended.
constexpr std::size_t kMostRows = 64;
constexpr Bytes kMostBytes = 32 * kMiB;

Bytes bytes_of(const store::KeptRow& row) { return row.slot_bytes * std::ssize(row.dram); }

}  // namespace

Keeping::Keeping(Context& context, store::Store& store, Classes& classes)
    : context_(context), store_(store), classes_(classes), rows_(store.blocks, store.cache) {
  if (context.config.keep_rows) rows_.start();
}

// ---- for the next daemon ----

void Keeping::tell() {
  if (!context_.config.keep_rows) return;
  context_.pass_on_orders();
  std::vector<SlotId> ended = rows_.take_ended();
  if (!ended.empty()) {
    context_.effects->insert(context_.effects->begin(), ForgetKept{std::move(ended)});
  }
  if (open_) return;
  KeepRows order;
  std::vector<SlotId> slots;
  Bytes bytes;
  while (order.rows.size() < kMostRows && bytes < kMostBytes) {
    std::optional<store::KeptRow> row = rows_.next();
    if (!row) break;
    const auto shape = classes_.shape(row->space.model_class);
    if (!shape) continue;
    bytes += bytes_of(*row);
    slots.insert(slots.end(), row->dram.begin(), row->dram.end());
    order.rows.push_back({*shape, std::move(*row)});
  }
  if (order.rows.empty()) return;
  open_ = order.ticket = context_.orders.next_ticket();
  store_.tiers.copy_reads(open_, Tier::kDram, slots);
  context_.emit(std::move(order));
}

bool Keeping::on_kept(const RowsKept& kept) {
  if (kept.ticket != open_) return false;
  open_ = {};
  const std::size_t held = store_.tiers.slots(Tier::kDram);
  store_.tiers.copy_ended(kept.ticket);
  return store_.tiers.slots(Tier::kDram) < held;
}

// ---- of the daemon before ----

void Keeping::adopt(const AdoptRows& left) {
  Counters::Prefixes::Kept& counters = context_.counters.prefixes.kept;
  counters.dropped = left.dropped;
  std::vector<store::KeptRow> rows = fitting(left);
  Slabs slabs = take_slabs(left, rows);
  const auto end = std::stable_partition(
      rows.begin(), rows.end(), [&](const store::KeptRow& row) { return claim(row, slabs); });
  forget({end, rows.end()}, counters.dropped.nobodys);
  rows.erase(end, rows.end());
  counters.blocks = rows.size();
  for (const store::KeptRow& row : rows) {
    counters.bytes += static_cast<std::uint64_t>(bytes_of(row).value);
  }
  const std::vector<store::KeptRow> rest = rows_.adopt(std::move(rows), context_.now);
  for (const store::KeptRow& row : rest) {
    --counters.blocks;
    counters.bytes -= static_cast<std::uint64_t>(bytes_of(row).value);
    slabs.free.insert(row.dram.begin(), row.dram.end());
  }
  forget(rest, counters.dropped.headless);
  store_.tiers.free(Tier::kDram, {slabs.free.begin(), slabs.free.end()});
  store_.tiers.scrub_slabs();
  context_.note(Note::Level::kInfo, EngineId(),
                "of the kvd before, DRAM has " + std::to_string(counters.blocks) +
                    " cached blocks, " + std::to_string(counters.bytes) + " bytes; " +
                    std::to_string(counters.dropped.all()) + " are of no use any more");
}

// A row comes after its parent.
std::vector<store::KeptRow> Keeping::fitting(const AdoptRows& left) {
  std::vector<store::KeptRow> rows, misfits;
  for (const KeptBlocks& blocks : left.rows) {
    const ModelClass& shape = blocks.shape;
    const bool whole = shape.layers > 0 && shape.layers_per_block > 0 && shape.block_tokens > 0 &&
                       shape.ranks > 0 && shape.slot_bytes() == blocks.row.slot_bytes &&
                       shape.groups() == blocks.row.dram.size() && blocks.row.saved.value > 0;
    const auto model_class =
        whole ? classes_.of(shape) : make_error(ErrorCode::kInvalidArgument, "no such shape");
    std::vector<store::KeptRow>& to = model_class.ok() ? rows : misfits;
    to.push_back(blocks.row);
    if (model_class.ok()) to.back().space.model_class = *model_class;
  }
  forget(misfits, context_.counters.prefixes.kept.dropped.misfit);
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.number < b.number; });
  return rows;
}

// One of which no row is left may have anybody's bytes: it is zeroed before anybody has it.
Keeping::Slabs Keeping::take_slabs(const AdoptRows& left, const std::vector<store::KeptRow>& rows) {
  Slabs slabs;
  for (const store::KeptRow& row : rows) {
    for (const SlotId slot : row.dram) {
      slabs.owners.try_emplace(
          slot.slab(), store::Taker{row.space.model_class, row.space.domain, {}, row.slot_bytes});
    }
  }
  for (const SlabIndex slab : left.slabs) {
    const auto owner = slabs.owners.find(slab);
    const bool nobody = owner == slabs.owners.end();
    const std::vector<SlotId> slots =
        store::adopt(store_.tiers, slab, nobody ? store::Taker{} : owner->second);
    slabs.free.insert(slots.begin(), slots.end());
  }
  return slabs;
}

bool Keeping::claim(const store::KeptRow& row, Slabs& slabs) {
  const std::set<SlotId> slots(row.dram.begin(), row.dram.end());
  const bool all = std::all_of(slots.begin(), slots.end(), [&](SlotId slot) {
    const store::Taker& owner = slabs.owners.at(slot.slab());
    return slabs.free.contains(slot) && owner.model_class == row.space.model_class &&
           owner.domain == row.space.domain;
  });
  if (!all || slots.size() != row.dram.size()) return false;
  for (const SlotId slot : slots) slabs.free.erase(slot);
  return true;
}

void Keeping::forget(const std::vector<store::KeptRow>& rows, std::uint64_t& counter) {
  counter += rows.size();
  ForgetKept ended;
  for (const store::KeptRow& row : rows) {
    ended.slots.insert(ended.slots.end(), row.dram.begin(), row.dram.end());
  }
  if (!ended.slots.empty()) context_.emit(std::move(ended));
}

}  // namespace kvd::core
