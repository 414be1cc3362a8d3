#include "kvd/core/cache/disk_cache.hpp"

#include <algorithm>

namespace kvd::core {

namespace {

constexpr std::size_t kMostWrites = 16;
/// The most rows that one event looks for on disk: all that are offered may be there already, or
/// may not be worth a write.
constexpr std::size_t kMostNamed = 1024;
/// The most rows of a class, per domain, that wait until its files are open.
constexpr std::size_t kMostLater = 1024;
/// After a start a request waits at least this long for the files to open.
constexpr Nanoseconds kLeastPatience = std::chrono::milliseconds(50);

}  // namespace

DiskCache::DiskCache(Context& context, store::Store& store, Requests& requests,
                     const Knowledge& knowledge)
    : context_(context),
      store_(store),
      requests_(requests),
      knowledge_(knowledge),
      classes_(context, store.cache.labels()),
      remote_(context, store, classes_),
      budget_(context.config.disk.writes_a_day, TimePoint{0}) {
  store::SecondTouch least{UINT32_MAX};
  if (classes_.has_disk()) least = context_.config.disk.admission;
  if (remote_.on()) {
    least.least = std::min(least.least, context_.config.remote.admission.least);
  }
  if (classes_.has_disk() || remote_.on()) store_.cache.offer_to_disk(least);
}

// ---- classes and names ----

void DiskCache::forget(const store::KeySpace& space, const Digest& digest) {
  Disk* disk = classes_.find(space);
  if (disk == nullptr) return;
  if (disk->directory) {
    disk->directory->forget(classes_.label(space.domain), classes_.name(space, digest));
  }
  const auto run = coming_.find({disk->id, {space, digest}});
  if (run == coming_.end()) return;
  for (Row& row : runs_.at(run->second).rows) row.dropped = row.dropped || row.digest == digest;
}

Nanoseconds DiskCache::opening_patience(planner::Seconds prefill_token, std::int64_t tokens) const {
  const double seconds = prefill_token.count() * static_cast<double>(tokens);
  return std::clamp(Nanoseconds(static_cast<std::int64_t>(1e9 * seconds)), kLeastPatience,
                    context_.config.disk.patience);
}

// ---- writing ----

void DiskCache::write_ahead() {
  if (!classes_.has_disk() && !remote_.on()) return;
  remote_.offer_all();
  for (std::size_t i = 0; i < kMostNamed && writes_.size() < kMostWrites && remote_.takes_more();
       ++i) {
    const std::optional<store::ForDisk> row = store_.cache.next_for_disk();
    if (!row) break;
    if (row->touches >= context_.config.disk.admission.least) write(*row);
    remote_.offer(*row);
  }
  remote_.write_ahead();
}

void DiskCache::write(const store::ForDisk& row) {
  Disk* disk = classes_.has_disk() ? classes_.find(row.space) : nullptr;
  if (disk == nullptr) return;
  classes_.want(*disk, row.space.domain);
  if (!context_.config.disk.name || !disk->takes_writes()) {
    std::set<store::RowId>& later = later_[disk->id][row.space.domain];
    if (later.size() < kMostLater) later.insert(row.row);
    return;
  }
  const Digest label = classes_.label(row.space.domain);
  const Digest name = classes_.name(row.space, row.digest);
  const bool there = disk->directory->find(label, name).has_value();
  store_.cache.labels().name(row.space, row.digest, name, there);
  if (disk->directory->knows(label, name)) return disk->directory->touch(label, name);
  const bool may = budget_.take(disk->row_bytes(), context_.now);
  const auto slot = may ? disk->directory->begin_write(label, name) : std::nullopt;
  if (!slot) {
    ++context_.counters.prefixes.lower[kDiskTier].refused;
    return;
  }
  const Ticket ticket = context_.orders.next_ticket();
  // DRAM may give the row up meanwhile: its slots wait for the end of the write.
  store_.tiers.copy_reads(ticket, Tier::kDram, row.dram);
  writes_[ticket] = {disk->id, *slot, disk->row_bytes(), false};
  context_.emit(WriteDisk{
      ticket,
      {disk->id, *slot, label, name, row.slot_bytes, row.dram, context_.config.disk.patience}});
}

void DiskCache::write_ended(Write& write, const DiskFinished& finished) {
  if (!write.told) {
    classes_.at(write.disk).directory->end_write(write.slot, finished.ok, finished.generation);
    Counters::Prefixes::Lower& counters = context_.counters.prefixes.lower[kDiskTier];
    ++(finished.ok ? counters.stores : counters.store_failures);
    if (finished.ok) counters.store_bytes += static_cast<std::uint64_t>(write.bytes.value);
  }
  write.told = true;
}

// ---- what the shell says ----

bool DiskCache::go_on() {
  classes_.sweep();
  const DiskClasses::Learned learned = classes_.learn();
  for (const DiskId disk : learned.all) offer_again(disk);
  return learned.any;
}

void DiskCache::on_resized(const DiskResized& resized) {
  classes_.on_resized(resized);
  offer_again(resized.disk);
}

void DiskCache::offer_again(DiskId disk) {
  const auto later = later_.extract(disk);
  if (later.empty()) return;
  for (const auto& [domain, rows] : later.mapped()) {
    for (const store::RowId row : rows) store_.cache.offer_to_disk(row);
  }
}

bool DiskCache::on_finished(const DiskFinished& finished) {
  if (remote_.on_finished(finished)) return true;
  if (const auto held = held_.find(finished.ticket); held != held_.end()) {
    if (finished.memory_held) return false;
    store_.tiers.free(Tier::kDram, std::move(held->second.slots));
    held_.erase(held);
    return true;
  }
  if (const auto read = reads_.extract(finished.ticket); !read.empty()) {
    return read_ended(read.mapped(), finished);
  }
  const auto write = writes_.find(finished.ticket);
  if (write == writes_.end()) return false;
  write_ended(write->second, finished);
  if (finished.memory_held) return false;
  writes_.erase(write);
  store_.tiers.copy_ended(finished.ticket);
  return true;  // what was evicted meanwhile is free now
}

void DiskCache::clear() {
  classes_.clear();
  later_.clear();
  for (auto& [id, run] : runs_) run.dropped = true;
}

std::size_t DiskCache::slots() const {
  std::size_t sum = 0;
  for (const auto& [id, run] : runs_) {
    for (const Row& row : run.rows) sum += row.dram.size();
  }
  for (const auto& [ticket, held] : held_) sum += held.slots.size();
  return sum;
}

Bytes DiskCache::bytes() const {
  Bytes sum;
  for (const auto& [id, disk] : classes_.all()) {
    if (disk.directory) sum += disk.row_bytes() * static_cast<std::int64_t>(disk.directory->used());
  }
  return sum;
}

DiskRates DiskCache::rates() const {
  DiskRates slowest;
  for (const auto& [id, disk] : classes_.all()) {
    if (!disk.rates[kDiskTier].measured()) continue;
    const double rate = disk.rates[kDiskTier].bandwidth().value;
    if (slowest.bytes_per_s > 0 && slowest.bytes_per_s < rate) continue;
    slowest = {rate, disk.rates[kDiskTier].latency().count()};
  }
  return slowest;
}

std::vector<DiskModel> DiskCache::models() const {
  using State = DiskClasses::State;
  constexpr const char* kNames[] = {"none", "opening", "open", "closing", "closing"};
  std::vector<DiskModel> all;
  for (const auto& [id, disk] : classes_.all()) {
    const bool none = disk.state == State::kNone;
    if (none && !disk.refused) continue;
    DiskModel model;
    model.id = id.value;
    model.model = disk.model;
    model.state = none ? "refused" : kNames[static_cast<std::size_t>(disk.state)];
    if (disk.directory) {
      model.cached = disk.row_bytes() * static_cast<std::int64_t>(disk.directory->used());
    }
    model.bytes = disk.files.bytes;
    model.engines = static_cast<std::uint32_t>(disk.engines.size());
    model.idle_s = to_seconds(context_.now - disk.used);
    all.push_back(std::move(model));
  }
  return all;
}

}  // namespace kvd::core
