#include "kvd/daemon/kept_memory.hpp"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstring>
#include <span>
#include <thread>
#include <tuple>

#include "ipc/digest/sha256.hpp"
#include "kernels/device/host/host_memory.hpp"
#include "kvd/daemon/descriptor_store.hpp"
#include "kvd/daemon/log.hpp"
#include "kvd/tiers/disk/checksum.hpp"

namespace kvd::daemon {

namespace {

const std::string kStateName = "kvd-state";
const std::string kSlabName = "kvd-dram-";

std::string name_of(SlabIndex slab) { return kSlabName + std::to_string(slab.value); }

std::optional<SlabIndex> number_of(const std::string& name) {
  std::uint32_t number = 0;
  const char* end = name.data() + name.size();
  if (!name.starts_with(kSlabName)) return std::nullopt;
  const auto read = std::from_chars(name.data() + kSlabName.size(), end, number);
  if (read.ec != std::errc() || read.ptr != end) return std::nullopt;
  return SlabIndex(number);
}

/// Its memory is the machine's again at once, whoever still keeps it.
void empty(int memory) {
  constexpr off_t kAll = off_t{1} << 62;
  (void)::fallocate(memory, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kAll);
}

kept::Hash hash_of(const std::string& domain) {
  const auto* text = reinterpret_cast<const std::uint8_t*>(domain.data());
  return digest::Sha256()({text, domain.size()}).bytes;
}

/// What all records of a row have in common.
auto key_of(const kept::Record& r) {
  return std::tuple(r.domain, r.fingerprint, r.digest, r.devices, r.shape, r.place.bytes, r.groups,
                    r.number, r.has_parent, r.parent);
}

core::KeptBlocks blocks_of(const kept::Record& r, DomainId domain) {
  core::KeptBlocks blocks;
  blocks.shape = {r.shape.layers, r.shape.layers_per_block, r.shape.block_tokens,
                  Bytes(static_cast<std::int64_t>(r.shape.token_bytes)), r.shape.ranks};
  blocks.row.space = {Fingerprint{Digest{r.fingerprint}}, domain, ClassId(), r.devices};
  blocks.row.digest = Digest{r.digest};
  if (r.has_parent != 0) blocks.row.parent = Digest{r.parent};
  blocks.row.number = r.number;
  blocks.row.saved = {r.saved};
  blocks.row.slot_bytes = Bytes(static_cast<std::int64_t>(r.place.bytes));
  return blocks;
}

/// Layer groups of a row, at most: more make no sense, and are not made room for.
constexpr std::uint32_t kMostGroups = 1u << 16;

}  // namespace

KeptMemory KeptMemory::take(const Config& config, KeptDescriptors kept, Domains& domains) {
  KeptMemory memory;
  memory.slab_bytes_ = config.slab_size();
  const std::uint32_t slabs = config.slabs(Tier::kDram);
  const bool room = descriptors_kept() > slabs;
  if (config.disk.keep_dram == "auto" && !room && descriptors_kept() > 0) {
    log_warning("the cache ends with this kvd: whoever started it keeps " +
                std::to_string(descriptors_kept()) + " descriptors, and DRAM has " +
                std::to_string(slabs) + " slabs; raise FileDescriptorStoreMax");
  }
  if (config.disk.keep_dram == "auto" && room) memory.open_state(kept);
  for (auto& [name, fd] : kept) {
    const auto slab = number_of(name);
    if (memory.on() && slab && slab->value < slabs) {
      memory.slabs_.emplace(*slab, std::move(fd));
      continue;
    }
    empty(fd.get());
    drop_kept_descriptor(name);
  }
  if (memory.on()) memory.read(config, domains);
  return memory;
}

// Without it nobody knows what the slabs hold: their memory is used again, zeroed.
void KeptMemory::open_state(KeptDescriptors& kept) {
  if (auto file = kept.extract(kStateName); !file.empty()) {
    auto state = kept::State::open(std::move(file.mapped()), slab_bytes_);
    if (state.ok()) {
      state_.emplace(std::move(*state));
      return;
    }
    log_warning("the cache of the kvd before is left behind: " + state.error().message);
    drop_kept_descriptor(kStateName);
  }
  auto state = kept::State::create(slab_bytes_);
  new_state_ = state.ok();
  if (!state.ok()) return log_warning("the cache ends with this kvd: " + state.error().message);
  state_.emplace(std::move(*state));
}

void KeptMemory::read(const Config& config, Domains& domains) {
  std::map<std::tuple<kept::Hash, std::uint32_t, std::uint32_t>, DomainId> entered;
  const auto domain_of = [&](const kept::Record& r) {
    const auto [known, is_new] = entered.try_emplace({r.domain, r.uid, r.gid});
    if (!is_new) return known->second;
    const auto entry = domains.enter(config.domains, r.uid, r.gid, [](DomainId) { return false; });
    if (entry.ok() && hash_of(entry->name) == r.domain) known->second = entry->id;
    return known->second;
  };
  std::map<decltype(key_of(kept::Record())), Row> rows;
  dropped_.torn += state_->each([&](std::uint32_t at, const kept::Record& record) {
    Row& row = rows[key_of(record)];
    const std::uint32_t groups = std::min(record.groups, kMostGroups);
    if (row.records.empty()) {
      row.blocks = blocks_of(record, domain_of(record));
      row.blocks.row.dram.resize(groups);
      row.sums.resize(groups);
      row.records.resize(groups, kept::kRecords);
    }
    const bool fits = record.group < groups && row.records[record.group] == kept::kRecords;
    if (!fits) return state_->erase(at);
    const bool named =
        record.place.slab < SlotId::kMaxSlabs && record.place.slot < SlotId::kMaxSlotsPerSlab;
    row.blocks.row.dram[record.group] =
        named ? SlotId(SlabIndex(record.place.slab), record.place.slot) : SlotId();
    row.sums[record.group] = record.sums;
    row.records[record.group] = at;
  });
  for (auto& [key, row] : rows) {
    const Fault fault = fault_of(row, config.slabs(Tier::kDram));
    if (fault == Fault::kNone) {
      for (const SlotId slot : row.blocks.row.dram) used_.insert(slot.slab());
      rows_.push_back(std::move(row));
    } else {
      drop(row, fault);
    }
  }
}

KeptMemory::Fault KeptMemory::fault_of(const Row& row, std::uint32_t slabs) const {
  const store::KeptRow& kept = row.blocks.row;
  const auto missing = [](std::uint32_t at) { return at == kept::kRecords; };
  if (row.records.empty() || std::any_of(row.records.begin(), row.records.end(), missing)) {
    return Fault::kTorn;
  }
  const bool fits = std::all_of(kept.dram.begin(), kept.dram.end(), [&](SlotId slot) {
    const bool there = !slot.none() && slot.slab().value < slabs && slabs_.contains(slot.slab());
    return there && kept.slot_bytes > Bytes(0) && kept.slot_bytes <= slab_bytes_ &&
           std::int64_t{slot.index()} < slab_bytes_ / kept.slot_bytes;
  });
  if (!fits) return Fault::kMisfit;
  return kept.space.domain ? Fault::kNone : Fault::kNobodys;
}

std::optional<kernels::Slab> KeptMemory::reopen(kernels::DeviceBackend& backend, SlabIndex slab) {
  auto file = slabs_.extract(slab);
  if (file.empty()) return std::nullopt;
  const bool used = used_.contains(slab);
  const int number = file.mapped().get();
  UniqueFd copy(::fcntl(number, F_DUPFD_CLOEXEC, 0));
  const auto memory = backend.reopen_slab(slab_bytes_, std::move(file.mapped()), !used);
  if (memory.ok()) {
    reopened_[slab] = used;
    return *memory;
  }
  log_warning("a slab of the kvd before is left behind: " + memory.error().message);
  empty(copy.get());
  drop_kept_descriptor(name_of(slab));
  return std::nullopt;
}

bool KeptMemory::is_as_written(const Row& row, const mover::SlabStore& slabs) {
  const store::KeptRow& kept = row.blocks.row;
  for (std::size_t group = 0; group < kept.dram.size(); ++group) {
    const std::uintptr_t at = slabs.address(Tier::kDram, kept.dram[group], kept.slot_bytes);
    const std::span bytes(reinterpret_cast<const std::byte*>(at), kept.slot_bytes.size());
    if (disk::group_sum(bytes) != row.sums[group]) return false;
  }
  return true;
}

core::AdoptRows KeptMemory::rows(const mover::SlabStore& slabs) {
  core::AdoptRows left;
  for (const auto& [slab, used] : reopened_) {
    if (used) left.slabs.push_back(slab);
  }
  if (!on()) rows_.clear();
  std::vector<Fault> faults(rows_.size(), Fault::kNone);
  std::atomic<std::size_t> next{0};
  const auto look = [&] {
    for (std::size_t i = next++; i < rows_.size(); i = next++) {
      const std::vector<SlotId>& dram = rows_[i].blocks.row.dram;
      const bool there = std::all_of(dram.begin(), dram.end(), [this](SlotId slot) {
        return reopened_.contains(slot.slab());
      });
      if (!there) faults[i] = Fault::kMisfit;
      if (there && !is_as_written(rows_[i], slabs)) faults[i] = Fault::kAltered;
    }
  };
  std::vector<std::thread> helpers(kernels::populate_threads(0) - 1);
  for (std::thread& helper : helpers) helper = std::thread(look);
  look();
  for (std::thread& helper : helpers) helper.join();
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const Row& row = rows_[i];
    if (faults[i] != Fault::kNone) {
      drop(row, faults[i]);
      continue;
    }
    for (std::size_t group = 0; group < row.records.size(); ++group) {
      records_[row.blocks.row.dram[group]] = row.records[group];
    }
    left.rows.push_back(row.blocks);
  }
  rows_.clear();
  left.dropped = dropped_;
  return left;
}

void KeptMemory::drop(const Row& row, Fault fault) {
  for (const std::uint32_t at : row.records) {
    if (at != kept::kRecords) state_->erase(at);
  }
  if (fault == Fault::kTorn) ++dropped_.torn;
  if (fault == Fault::kAltered) ++dropped_.altered;
  if (fault == Fault::kMisfit) ++dropped_.misfit;
  if (fault == Fault::kNobodys) ++dropped_.nobodys;
}

bool KeptMemory::keep(const mover::SlabStore& slabs) {
  Status status;
  if (new_state_) status = keep_descriptor(kStateName, state_->file().get());
  for (std::uint32_t i = 0; status.ok() && i < slabs.count(Tier::kDram); ++i) {
    const SlabIndex slab(i);
    if (reopened_.contains(slab)) continue;
    const auto memory = slabs.export_slab(Tier::kDram, slab);
    status = memory.ok() ? keep_descriptor(name_of(slab), memory->get()) : Status(memory.error());
  }
  if (!status.ok()) switch_off(status.error().message);
  return status.ok();
}

void KeptMemory::switch_off(const std::string& why) {
  log_warning("the cache ends with this kvd: " + why);
  state_.reset();
  records_.clear();
}

}  // namespace kvd::daemon
