#include "kvd/daemon/memory/keeper.hpp"

#include <span>
#include <utility>
#include <vector>

#include "kvd/daemon/base/log.hpp"
#include "kvd/tiers/disk/files/checksum.hpp"

namespace kvd::daemon {

namespace {

kept::Record record_of(const core::KeptBlocks& blocks, const Domains::Origin& origin,
                       std::uint32_t group) {
  const store::KeptRow& row = blocks.row;
  kept::Record record;
  record.place.tier = static_cast<std::uint32_t>(row.tier);
  record.place.slab = row.slots[group].slab().value;
  record.place.slot = row.slots[group].index();
  record.place.bytes = static_cast<std::uint64_t>(row.slot_bytes.value);
  record.shape.layers = blocks.shape.layers;
  record.shape.layers_per_block = blocks.shape.layers_per_block;
  record.shape.block_tokens = blocks.shape.block_tokens;
  record.shape.ranks = blocks.shape.ranks;
  record.shape.token_bytes =
      static_cast<std::uint64_t>(blocks.shape.bytes_per_token_per_layer.value);
  record.group = group;
  record.groups = static_cast<std::uint32_t>(row.slots.size());
  record.number = row.number;
  record.has_parent = row.parent ? 1 : 0;
  record.devices = row.space.devices;
  record.saved = row.saved.value;
  record.uid = origin.uid;
  record.gid = origin.gid;
  record.fingerprint = row.space.fingerprint.digest.bytes;
  record.domain = origin.name.bytes;
  record.digest = row.digest.bytes;
  if (row.parent) record.parent = row.parent->bytes;
  return record;
}

kept::Record record_of(const core::SendSlab& slab, Bytes slab_bytes, const Domains::Origin& origin,
                       BootId boot, const Digest& proof) {
  kept::Record record;
  record.place.tier = static_cast<std::uint32_t>(Tier::kHbm);
  record.place.slab = slab.slab.value;
  record.place.bytes = static_cast<std::uint64_t>(slab_bytes.value);
  record.group = slab.position;
  record.groups = slab.count;
  record.uid = origin.uid;
  record.gid = origin.gid;
  record.fingerprint = kept::region_name(boot.bytes, slab.region.value);
  record.domain = origin.name.bytes;
  record.digest = proof.bytes;
  return record;
}

}  // namespace

Keeper::Keeper(KeptMemory& memory, const mover::SlabStore& slabs, const Domains& domains,
               BootId boot, std::function<void(Ticket)> kept)
    : slabs_(slabs),
      domains_(domains),
      boot_(boot),
      kept_(std::move(kept)),
      memory_(memory),
      thread_([this] { run(); }) {}

Keeper::~Keeper() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Keeper::keep(const core::KeepRows& order) {
  Job job{order.ticket, {}};
  for (const core::KeptBlocks& blocks : order.rows) {
    const auto origin = domains_.origin(blocks.row.space.domain);
    if (!origin) continue;  // forgotten: nobody would find it
    const store::KeptRow& row = blocks.row;
    for (std::uint32_t group = 0; group < row.slots.size(); ++group) {
      job.slots.push_back({{row.tier, row.slots[group]}, record_of(blocks, *origin, group)});
    }
  }
  {
    const std::lock_guard lock(mutex_);
    for (const Slot& slot : job.slots) wanted_[slot.slot] = job.ticket;
    waiting_.push_back(std::move(job));
  }
  wake_.notify_all();
}

void Keeper::keep(const core::SendSlab& slab, DomainId domain, const Digest& proof) {
  const auto origin = domains_.origin(domain);
  if (!origin || !memory_.keeps_hbm()) return;
  const std::lock_guard lock(mutex_);
  const auto at =
      memory_.state().write(record_of(slab, slabs_.slab_bytes(Tier::kHbm), *origin, boot_, proof));
  if (at.ok()) memory_.records()[{Tier::kHbm, SlotId(slab.slab, 0)}] = *at;
}

void Keeper::forget(const core::ForgetKept& order) {
  const std::lock_guard lock(mutex_);
  for (const Tier tier : {Tier::kHbm, Tier::kDram}) {
    for (const SlotId slot : order.slots[static_cast<std::size_t>(tier)]) {
      wanted_.erase({tier, slot});
      const auto record = memory_.records().extract({tier, slot});
      if (!record.empty()) memory_.state().erase(record.mapped());
    }
  }
}

void Keeper::write(const Job& job) {
  for (const Slot& slot : job.slots) {
    kept::Record record = slot.record;
    const auto& [tier, place] = slot.slot;
    const Bytes size(static_cast<std::int64_t>(record.place.bytes));
    const Status read = slabs_.read(tier, place, size, [&](std::span<const std::byte> bytes) {
      record.sums = disk::group_sum(bytes);
    });
    if (!read.ok()) log_warning("what is cached ends with this kvd: " + read.error().message);
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    const auto wanted = wanted_.find(slot.slot);
    if (wanted == wanted_.end() || wanted->second != job.ticket) continue;
    wanted_.erase(wanted);
    if (!read.ok()) continue;
    const auto at = memory_.state().write(record);
    if (at.ok()) memory_.records()[slot.slot] = *at;
  }
}

void Keeper::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    if (stopping_) return;
    const Job job = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    write(job);
    kept_(job.ticket);
    lock.lock();
  }
}

}  // namespace kvd::daemon
