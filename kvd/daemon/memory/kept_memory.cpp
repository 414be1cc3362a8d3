#include "kvd/daemon/memory/kept_memory.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstring>
#include <iterator>
#include <span>
#include <thread>
#include <tuple>

#include "ipc/digest/sha256.hpp"
#include "kernels/device/host/host_memory.hpp"
#include "kvd/daemon/base/descriptor_store.hpp"
#include "kvd/daemon/base/log.hpp"
#include "kvd/tiers/disk/files/checksum.hpp"

namespace kvd::daemon {

namespace {

const std::string kStateName = "kvd-state";
constexpr Tier kBoth[kTiers] = {Tier::kHbm, Tier::kDram};

std::size_t index(Tier tier) { return static_cast<std::size_t>(tier); }

std::string prefix_of(Tier tier) { return std::string("kvd-") + name(tier) + "-"; }

std::string name_of(KeptMemory::Slab slab) {
  return prefix_of(slab.first) + std::to_string(slab.second.value);
}

std::optional<KeptMemory::Slab> slab_of(const std::string& name) {
  for (const Tier tier : kBoth) {
    const std::string prefix = prefix_of(tier);
    std::uint32_t number = 0;
    const char* end = name.data() + name.size();
    if (!name.starts_with(prefix)) continue;
    const auto read = std::from_chars(name.data() + prefix.size(), end, number);
    if (read.ec == std::errc() && read.ptr == end) return {{tier, SlabIndex(number)}};
  }
  return std::nullopt;
}

/// Gives the memory back to the machine at once, whoever still keeps it. Not for HBM: engines of
/// the earlier kvd may go on computing there while they map it.
void empty(int memory) {
  constexpr off_t kAll = off_t{1} << 62;
  (void)::fallocate(memory, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kAll);
}

/// Nobody keeps the memory any more. It ends with the last process that maps it.
void let_go(const std::string& name, const UniqueFd& memory) {
  const auto slab = slab_of(name);
  if (!slab || slab->first != Tier::kHbm) empty(memory.get());
  drop_kept_descriptor(name);
}

Status keep(KeptMemory::Slab slab, const Result<UniqueFd>& memory) {
  if (!memory.ok()) return memory.error();
  return keep_descriptor(name_of(slab), memory->get());
}

/// Neighbours as one, in order.
std::vector<kernels::SlabExtent> joined(std::vector<kernels::SlabExtent> extents) {
  std::sort(extents.begin(), extents.end(),
            [](const auto& a, const auto& b) { return a.from < b.from; });
  std::vector<kernels::SlabExtent> whole;
  for (const kernels::SlabExtent& extent : extents) {
    const Bytes end = whole.empty() ? Bytes(-1) : whole.back().from + whole.back().length;
    if (extent.from > end) {
      whole.push_back(extent);
    } else {
      whole.back().length = std::max(end, extent.from + extent.length) - whole.back().from;
    }
  }
  return whole;
}

kept::Hash hash_of(const std::string& domain) {
  const auto* text = reinterpret_cast<const std::uint8_t*>(domain.data());
  return digest::Sha256()({text, domain.size()}).bytes;
}

/// What all records of a row have in common.
auto key_of(const kept::Record& r) {
  return std::tuple(r.domain, r.fingerprint, r.digest, r.devices, r.shape, r.place.tier,
                    r.place.bytes, r.groups, r.number, r.has_parent, r.parent);
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
  blocks.row.tier = r.place.tier == index(Tier::kHbm) ? Tier::kHbm : Tier::kDram;
  return blocks;
}

/// The most layer groups of a row. A record that says more is wrong, and gets no room.
constexpr std::uint32_t kMostGroups = 1u << 16;

}  // namespace

KeptMemory KeptMemory::take(const Config& config, bool reopens, KeptDescriptors kept,
                            Domains& domains) {
  const bool any = !kept.empty();
  KeptMemory memory;
  memory.slab_bytes_ = config.slab_size();
  memory.device_slabs_ = config.slabs(Tier::kHbm);
  if (config.disk.keep && memory.choose_slabs(config)) {
    if (reopens) {
      memory.open_state(kept);
    } else {
      memory.switch_off("its DRAM is made by the GPU's driver (cuda.dram), anew at each start");
    }
  }
  for (auto& [name, fd] : kept) {
    const auto slab = slab_of(name);
    if (memory.on() && slab && slab->second.value < memory.most_[index(slab->first)]) {
      memory.slabs_.emplace(*slab, std::move(fd));
      continue;
    }
    let_go(name, fd);
  }
  if (memory.on()) memory.read(config, domains);
  memory.let_go_unused();
  kept.clear();
  if (any) wait_for_descriptor_store();  // what was let go is room for this daemon's
  return memory;
}

// One descriptor is for the file of records. DRAM comes first, as it has most of what is cached.
bool KeptMemory::choose_slabs(const Config& config) {
  const std::size_t room = descriptors_kept();
  if (room == 0) return false;
  std::size_t taken = 1;
  for (const Tier tier : {Tier::kDram, Tier::kHbm}) {
    const std::uint32_t slabs = config.all_slabs(tier);
    taken += slabs;
    if (taken > room) {
      log_warning(std::string(tier == Tier::kDram ? "the cache" : "what HBM alone caches") +
                  " ends with this kvd: whoever started it keeps " + std::to_string(room) +
                  " descriptors, and it takes " + std::to_string(taken) +
                  "; raise FileDescriptorStoreMax, or kvd-holder's --keep");
      return tier == Tier::kHbm;
    }
    most_[index(tier)] = slabs;
  }
  return true;
}

Bytes KeptMemory::bytes(Tier tier) const {
  const auto of = [tier](const auto& entry) { return entry.first.first == tier; };
  return slab_bytes_ * std::count_if(slabs_.begin(), slabs_.end(), of);
}

Bytes KeptMemory::bytes(DeviceId device) const {
  return slab_bytes_ * std::count_if(slabs_.begin(), slabs_.end(), [&](const auto& entry) {
           return entry.first.first == Tier::kHbm &&
                  entry.first.second.value / device_slabs_ == device.value;
         });
}

void KeptMemory::let_go_unused() {
  std::erase_if(slabs_, [this](const auto& entry) {
    const bool unused = entry.first.first == Tier::kHbm && !used_.contains(entry.first) &&
                        !of_regions_.contains(entry.first);
    if (unused) let_go(name_of(entry.first), entry.second);
    return unused;
  });
}

// Without the file nobody knows what the slabs hold, so their memory is zeroed and used again.
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
    if (record.shape.layers == 0) return read_region_slab(at, record, domain_of);
    Row& row = rows[key_of(record)];
    const std::uint32_t groups = std::min(record.groups, kMostGroups);
    if (row.records.empty()) {
      row.blocks = blocks_of(record, domain_of(record));
      row.blocks.row.slots.resize(groups);
      row.sums.resize(groups);
      row.records.resize(groups, kept::kRecords);
    }
    const bool fits = record.place.tier < kTiers && record.group < groups &&
                      row.records[record.group] == kept::kRecords;
    if (!fits) return state_->erase(at);
    const bool named =
        record.place.slab < SlotId::kMaxSlabs && record.place.slot < SlotId::kMaxSlotsPerSlab;
    row.blocks.row.slots[record.group] =
        named ? SlotId(SlabIndex(record.place.slab), record.place.slot) : SlotId();
    row.sums[record.group] = record.sums;
    row.records[record.group] = at;
  });
  for (auto& [key, row] : rows) {
    const Fault fault = fault_of(row);
    if (fault != Fault::kNone) {
      drop(row, fault);
      continue;
    }
    const store::KeptRow& found = row.blocks.row;
    for (const SlotId slot : found.slots) {
      const Bytes from = found.slot_bytes * std::int64_t{slot.index()};
      used_[{found.tier, slot.slab()}].push_back({from, found.slot_bytes});
    }
    rows_.push_back(std::move(row));
  }
  for (auto& [slab, extents] : used_) extents = joined(std::move(extents));
  choose_regions();
}

void KeptMemory::read_region_slab(std::uint32_t at, const kept::Record& record,
                                  const DomainOf& domain_of) {
  RegionSlabs& region = regions_[record.fingerprint];
  if (region.at.empty()) {
    std::copy_n(record.fingerprint.begin(), region.name.boot.bytes.size(),
                region.name.boot.bytes.begin());
    std::memcpy(&region.name.number.value, &record.fingerprint[sizeof(BootId)],
                sizeof region.name.number.value);
    region.proof = Digest{record.digest};
    region.domain = domain_of(record);
    region.count = record.groups;
  }
  const SlabIndex slab(record.place.slab);
  const bool there = record.place.tier == index(Tier::kHbm) && slabs_.contains({Tier::kHbm, slab});
  region.fits = region.fits && there && region.domain && region.proof == Digest{record.digest} &&
                region.count == record.groups && record.group < region.count &&
                record.place.bytes == static_cast<std::uint64_t>(slab_bytes_.value);
  if (!region.at.try_emplace(record.group, slab, at).second) {
    region.fits = false;
    state_->erase(at);
  }
}

// A slab that two regions name, or a region and a row, is neither's: no kvd leaves that.
void KeptMemory::choose_regions() {
  std::map<Slab, int> named;
  for (const auto& [name, region] : regions_) {
    for (const auto& [position, slab] : region.at) ++named[{Tier::kHbm, slab.first}];
  }
  std::erase_if(regions_, [&](const auto& entry) {
    const RegionSlabs& region = entry.second;
    const bool alone = std::all_of(region.at.begin(), region.at.end(), [&](const auto& each) {
      const Slab slab{Tier::kHbm, each.second.first};
      return named.at(slab) == 1 && !used_.contains(slab);
    });
    const bool whole = region.fits && alone && region.at.size() == region.count;
    for (const auto& [position, slab] : region.at) {
      if (whole) {
        of_regions_[{Tier::kHbm, slab.first}] = false;
      } else {
        state_->erase(slab.second);
      }
    }
    return !whole;
  });
}

KeptMemory::Fault KeptMemory::fault_of(const Row& row) const {
  const store::KeptRow& kept = row.blocks.row;
  const auto missing = [](std::uint32_t at) { return at == kept::kRecords; };
  if (row.records.empty() || std::any_of(row.records.begin(), row.records.end(), missing)) {
    return Fault::kTorn;
  }
  const bool fits = std::all_of(kept.slots.begin(), kept.slots.end(), [&](SlotId slot) {
    const bool there = !slot.none() && slabs_.contains({kept.tier, slot.slab()});
    return there && kept.slot_bytes > Bytes(0) && kept.slot_bytes <= slab_bytes_ &&
           std::int64_t{slot.index()} < slab_bytes_ / kept.slot_bytes;
  });
  if (!fits) return Fault::kMisfit;
  return kept.space.domain ? Fault::kNone : Fault::kNobodys;
}

std::optional<kernels::Slab> KeptMemory::reopen(kernels::SlabSource& backend, Slab slab) {
  auto file = slabs_.extract(slab);
  if (file.empty()) return std::nullopt;
  const bool used = used_.contains(slab);
  const auto of_region = of_regions_.find(slab);
  const bool in_place = slab.first == Tier::kDram || of_region != of_regions_.end();
  UniqueFd old(::fcntl(file.mapped().get(), F_DUPFD_CLOEXEC, 0));  // it is closed if this fails
  const auto memory = in_place
                          ? backend.reopen_slab(slab.first, slab_bytes_, std::move(file.mapped()),
                                                slab.first == Tier::kDram && !used)
                          : copy(backend, slab, old);
  if (memory.ok() && of_region != of_regions_.end()) {
    of_region->second = true;
    kept_.insert(slab);
    return *memory;
  }
  if (memory.ok()) {
    reopened_[slab] = used;
    if (in_place) kept_.insert(slab);
    return *memory;
  }
  log_warning("a slab of the kvd before is left behind: " + memory.error().message);
  let_go(name_of(slab), old);
  return std::nullopt;
}

// A daemon that is killed here leaves the old slab, the new one, or none. A missing slab is a miss.
Result<kernels::Slab> KeptMemory::copy(kernels::SlabSource& backend, Slab slab,
                                       const UniqueFd& old) {
  Result<kernels::Slab> memory = backend.copy_slab(slab_bytes_, old, used_.at(slab));
  const auto is_short = [&] {
    return !memory.ok() && memory.error().code == ErrorCode::kOutOfMemory;
  };
  // One slab's memory makes room for all slabs before it. If engines of the earlier kvd still map
  // it, all of them have to go.
  if (is_short() && let_go_last(slab)) {
    wait_for_descriptor_store();
    memory = backend.copy_slab(slab_bytes_, old, used_.at(slab));
    while (is_short() && let_go_last(slab)) {
    }
  }
  if (!memory.ok()) return memory;
  let_go(name_of(slab), old);
  if (daemon::keep(slab, backend.export_slab(memory->handle)).ok()) kept_.insert(slab);
  return memory;
}

bool KeptMemory::let_go_last(Slab slab) {
  const std::uint32_t devices = slab.second.value / device_slabs_ + 1;
  auto last = slabs_.lower_bound({Tier::kHbm, SlabIndex(devices * device_slabs_)});
  if (last == slabs_.begin() || std::prev(last)->first < slab) return false;
  --last;
  log_warning("slab " + std::to_string(last->first.second.value) +
              " of HBM of the kvd before is left behind: there is no room for one slab more");
  let_go(name_of(last->first), last->second);
  slabs_.erase(last);
  return true;
}

Result<bool> KeptMemory::is_as_written(const Row& row, const mover::SlabStore& slabs) {
  const store::KeptRow& kept = row.blocks.row;
  for (std::size_t group = 0; group < kept.slots.size(); ++group) {
    bool same = false;
    const auto look = [&](std::span<const std::byte> bytes) {
      same = disk::group_sum(bytes) == row.sums[group];
    };
    KVD_TRY(slabs.read(kept.tier, kept.slots[group], kept.slot_bytes, look));
    if (!same) return false;
  }
  return true;
}

core::AdoptRows KeptMemory::rows(const mover::SlabStore& slabs) {
  core::AdoptRows left;
  for (const auto& [slab, used] : reopened_) {
    if (used) left.slabs[index(slab.first)].push_back(slab.second);
  }
  if (!on()) rows_.clear();
  std::vector<Fault> faults(rows_.size(), Fault::kNone);
  std::atomic<std::size_t> next{0};
  const auto look = [&] {
    for (std::size_t i = next++; i < rows_.size(); i = next++) {
      const store::KeptRow& row = rows_[i].blocks.row;
      const bool there = std::all_of(row.slots.begin(), row.slots.end(), [&](SlotId slot) {
        return reopened_.contains({row.tier, slot.slab()});
      });
      if (!there) {
        faults[i] = Fault::kMisfit;
        continue;
      }
      const Result<bool> same = is_as_written(rows_[i], slabs);
      if (!same.ok()) log_warning("blocks are left behind: " + same.error().message);
      if (!same.ok() || !*same) faults[i] = Fault::kAltered;
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
      const store::KeptRow& found = row.blocks.row;
      records_[{found.tier, found.slots[group]}] = row.records[group];
    }
    left.rows.push_back(row.blocks);
  }
  rows_.clear();
  left.dropped = dropped_;
  return left;
}

core::AdoptRegions KeptMemory::regions() {
  core::AdoptRegions left;
  for (const auto& [name, region] : std::exchange(regions_, {})) {
    core::AdoptRegions::Left one{region.name, region.proof, region.domain, {}};
    for (const auto& [position, slab] : region.at) {
      if (of_regions_.at({Tier::kHbm, slab.first})) one.slabs.push_back(slab.first);
    }
    const bool whole = on() && one.slabs.size() == region.count;
    if (!whole) one.domain = {};
    for (const auto& [position, slab] : region.at) {
      if (whole) {
        records_[{Tier::kHbm, SlotId(slab.first, 0)}] = slab.second;
      } else if (on()) {
        state_->erase(slab.second);
      }
    }
    if (!one.slabs.empty()) left.regions.push_back(std::move(one));
  }
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
  for (const Tier tier : kBoth) {
    for (std::uint32_t i = 0; status.ok() && i < most_[index(tier)]; ++i) {
      const Slab slab{tier, SlabIndex(i)};
      const bool there = slabs.has(tier, slab.second);
      if (!there || kept_.contains(slab)) continue;
      status = daemon::keep(slab, slabs.export_slab(tier, slab.second));
    }
  }
  if (!status.ok()) switch_off(status.error().message);
  return status.ok();
}

void KeptMemory::renewed(Slab slab, const Result<UniqueFd>& memory) const {
  if (!on() || slab.second.value >= most_[index(slab.first)]) return;
  drop_kept_descriptor(name_of(slab));
  const Status status = daemon::keep(slab, memory);
  if (status.ok()) return;
  log_warning("what slab " + std::to_string(slab.second.value) + " of " + name(slab.first) +
              " caches ends with this kvd: " + status.error().message);
}

// Whoever started kvd may go on keeping the file. No sum would tell that a region's slab has become
// somebody else's.
void KeptMemory::switch_off(const std::string& why) {
  log_warning("the cache ends with this kvd: " + why);
  for (const auto& [name, region] : regions_) {
    for (const auto& [position, slab] : region.at) state_->erase(slab.second);
  }
  state_.reset();
  records_.clear();
}

}  // namespace kvd::daemon
