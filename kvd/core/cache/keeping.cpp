#include "kvd/core/cache/keeping.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>

#include "ipc/vocabulary/human.hpp"

namespace kvd::core {

namespace {

/// The most rows that are written down at a time: their slots are not free before that has ended.
constexpr std::size_t kMostRows = 64;
constexpr Bytes kMostBytes = 32 * kMiB;
/// After this long, eager copies have brought to DRAM what it has room for. Those rows are written
/// down in DRAM, so their bytes need not be read from HBM, across the link of a GPU.
constexpr Nanoseconds kEagerPatience = std::chrono::seconds(1);
constexpr Tier kBoth[kTiers] = {Tier::kHbm, Tier::kDram};

std::size_t number(Tier tier) { return static_cast<std::size_t>(tier); }

Bytes bytes_of(const store::KeptRow& row) { return row.slot_bytes * std::ssize(row.slots); }

/// Whether slots of the shape have `slot_bytes` bytes; the shape's numbers may be anything.
bool has_slots_of(const ModelClass& shape, Bytes slot_bytes) {
  std::int64_t rest = slot_bytes.value;
  for (const std::int64_t part :
       {shape.bytes_per_token_per_layer.value, std::int64_t{shape.layers_per_block},
        std::int64_t{shape.block_tokens}}) {
    if (part <= 0 || rest % part != 0) return false;
    rest /= part;
  }
  return rest == 1;
}

bool any(const store::SlotsByTier& slots) {
  return std::any_of(slots.begin(), slots.end(), [](const auto& there) { return !there.empty(); });
}

}  // namespace

Keeping::Keeping(Context& context, store::Store& store, Classes& classes)
    : context_(context), store_(store), classes_(classes), rows_(store.blocks, store.cache) {
  if (context.config.keep.dram) rows_.start(context.config.keep.hbm);
}

// ---- for the next daemon ----

void Keeping::tell() {
  if (!context_.config.keep.dram) return;
  context_.pass_on_orders();
  store::SlotsByTier ended = rows_.take_ended(context_.now);
  if (any(ended)) {
    context_.effects->insert(context_.effects->begin(), ForgetKept{std::move(ended)});
  }
  if (open_) return;
  KeepRows order;
  store::SlotsByTier slots;
  Bytes bytes;
  const bool eager = context_.tuning.rotation.eager;
  const TimePoint hbm_by = eager ? context_.now - kEagerPatience : context_.now;
  while (order.rows.size() < kMostRows && bytes < kMostBytes) {
    std::optional<store::KeptRow> row = rows_.next(hbm_by);
    if (!row) break;
    const auto shape = classes_.shape(row->space.model_class);
    if (!shape) continue;
    bytes += bytes_of(*row);
    std::vector<SlotId>& there = slots[number(row->tier)];
    there.insert(there.end(), row->slots.begin(), row->slots.end());
    order.rows.push_back({*shape, std::move(*row)});
  }
  if (order.rows.empty()) {
    (void)rows_.all_read();
    return;
  }
  open_ = order.ticket = context_.orders.next_ticket();
  for (const Tier tier : kBoth) store_.tiers.copy_reads(open_, tier, slots[number(tier)]);
  context_.emit(std::move(order));
}

bool Keeping::on_kept(const RowsKept& kept) {
  if (kept.ticket != open_) return false;
  open_ = {};
  const auto held = [this] {
    return store_.tiers.slots(Tier::kHbm) + store_.tiers.slots(Tier::kDram);
  };
  const std::size_t before = held();
  const bool evictable = rows_.all_read();
  store_.tiers.copy_ended(kept.ticket);
  return held() < before || evictable;
}

// ---- of the daemon before ----

void Keeping::adopt(const AdoptRows& left) {
  Counters::Prefixes::Kept& counters = context_.counters.prefixes.kept;
  counters.dropped = left.dropped;
  std::vector<store::KeptRow> rows = fitting(left);
  SlabsByTier slabs = take_slabs(left, rows);
  const auto end = std::stable_partition(rows.begin(), rows.end(), [&](const store::KeptRow& row) {
    return claim(row, slabs[number(row.tier)]);
  });
  forget({end, rows.end()}, counters.dropped.nobodys);
  rows.erase(end, rows.end());
  for (const store::KeptRow& row : rows) {
    ++counters.blocks[number(row.tier)];
    counters.bytes[number(row.tier)] += static_cast<std::uint64_t>(bytes_of(row).value);
  }
  const std::vector<store::KeptRow> rest = rows_.adopt(std::move(rows), context_.now);
  for (const store::KeptRow& row : rest) {
    --counters.blocks[number(row.tier)];
    counters.bytes[number(row.tier)] -= static_cast<std::uint64_t>(bytes_of(row).value);
    slabs[number(row.tier)].free.insert(row.slots.begin(), row.slots.end());
  }
  forget(rest, counters.dropped.headless);
  for (const Tier tier : kBoth) {
    const std::set<SlotId>& free = slabs[number(tier)].free;
    store_.tiers.free(tier, {free.begin(), free.end()});
  }
  store_.tiers.scrub_slabs();
  note_adopted();
}

void Keeping::note_adopted() {
  const Counters::Prefixes::Kept& kept = context_.counters.prefixes.kept;
  std::string text = "of the kvd before";
  for (const Tier tier : kBoth) {
    text += std::string(tier == kBoth[0] ? ", " : " and ") + name(tier) + " has " +
            std::to_string(kept.blocks[number(tier)]) + " cached blocks, " +
            human_size(Bytes(static_cast<std::int64_t>(kept.bytes[number(tier)]))) + ",";
  }
  text.back() = ';';
  text += " " + std::to_string(kept.dropped.all()) + " are of no use any more";
  context_.note(Note::Level::kInfo, EngineId(), std::move(text));
}

bool Keeping::fits(const KeptBlocks& blocks) const {
  const ModelClass& shape = blocks.shape;
  const store::KeptRow& row = blocks.row;
  const bool whole = shape.layers > 0 && shape.ranks > 0 && has_slots_of(shape, row.slot_bytes) &&
                     shape.groups() == row.slots.size() && row.saved.value > 0;
  if (!whole || row.tier == Tier::kDram) return whole;
  std::vector<DeviceId> ranks;
  for (std::size_t group = 0; group < row.slots.size(); ++group) {
    const DeviceId device = store_.hbm.device_of(row.slots[group]);
    if (group % shape.rank_groups() == 0) ranks.push_back(device);
    if (ranks.back() != device) return false;
  }
  return number_of(Devices(std::move(ranks))) == row.space.devices;
}

// Puts each row after its parent.
std::vector<store::KeptRow> Keeping::fitting(const AdoptRows& left) {
  std::vector<store::KeptRow> rows, misfits;
  for (const KeptBlocks& blocks : left.rows) {
    const auto model_class = fits(blocks)
                                 ? classes_.of(blocks.shape)
                                 : make_error(ErrorCode::kInvalidArgument, "no such shape");
    std::vector<store::KeptRow>& to = model_class.ok() ? rows : misfits;
    to.push_back(blocks.row);
    if (model_class.ok()) to.back().space.model_class = *model_class;
  }
  forget(misfits, context_.counters.prefixes.kept.dropped.misfit);
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.number < b.number; });
  return rows;
}

// A slab without any row left may hold anybody's bytes, so it is zeroed before anybody gets it. So
// is a slab that rows of two owners claim, which no kvd leaves.
Keeping::SlabsByTier Keeping::take_slabs(const AdoptRows& left,
                                         const std::vector<store::KeptRow>& rows) {
  SlabsByTier slabs;
  for (const store::KeptRow& row : rows) {
    for (const SlotId slot : row.slots) {
      const store::Taker owner{row.space.model_class, row.space.domain, {}, row.slot_bytes};
      const auto [known, is_new] = slabs[number(row.tier)].owners.try_emplace(slot.slab(), owner);
      const bool same =
          known->second.model_class == owner.model_class && known->second.domain == owner.domain;
      if (!is_new && !same) known->second = {};
    }
  }
  for (const Tier tier : kBoth) {
    Slabs& there = slabs[number(tier)];
    for (const SlabIndex slab : left.slabs[number(tier)]) {
      const auto owner = there.owners.find(slab);
      const bool nobody = owner == there.owners.end();
      const std::vector<SlotId> slots =
          store::adopt(store_.tiers, tier, slab, nobody ? store::Taker{} : owner->second);
      there.free.insert(slots.begin(), slots.end());
    }
  }
  return slabs;
}

bool Keeping::claim(const store::KeptRow& row, Slabs& slabs) {
  const std::set<SlotId> slots(row.slots.begin(), row.slots.end());
  const bool all = std::all_of(slots.begin(), slots.end(), [&](SlotId slot) {
    const store::Taker& owner = slabs.owners.at(slot.slab());
    return slabs.free.contains(slot) && owner.model_class == row.space.model_class &&
           owner.domain == row.space.domain;
  });
  if (!all || slots.size() != row.slots.size()) return false;
  for (const SlotId slot : slots) slabs.free.erase(slot);
  return true;
}

void Keeping::forget(const std::vector<store::KeptRow>& rows, std::uint64_t& counter) {
  counter += rows.size();
  ForgetKept ended;
  for (const store::KeptRow& row : rows) {
    std::vector<SlotId>& slots = ended.slots[number(row.tier)];
    slots.insert(slots.end(), row.slots.begin(), row.slots.end());
  }
  if (any(ended.slots)) context_.emit(std::move(ended));
}

}  // namespace kvd::core
