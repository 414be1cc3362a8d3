// What the disk brings to DRAM, for which requests, and how long they wait for it.
#include <algorithm>
#include <utility>

#include "kvd/core/cache/disk_cache.hpp"

namespace kvd::core {

namespace {

/// Rows under way: enough to keep a device busy, few enough to leave DRAM to others.
constexpr std::size_t kMostReads = 512;
constexpr std::int64_t kDramShare = 4;  ///< reads may fill one part in so many of DRAM
/// Assumed until reads have been measured: a plain NVMe drive.
constexpr double kUsualRate = 1e9;

}  // namespace

DiskCache::Asked DiskCache::asked_by(const Request& request, const store::KeySpace& space) const {
  const Session& session = requests_.session_of(request);
  Asked asked;
  asked.space = space;
  asked.taker = session.taker();
  asked.chain = request.content.chain;
  asked.groups = session.groups();
  asked.block_tokens = session.shape.block_tokens;
  asked.saved = Knowledge::saved(session);
  asked.prefill_token = planner::Seconds(Knowledge::prefill_token_s(session));
  asked.ahead = planner::Seconds(knowledge_.prefill_ahead_s(session));
  return asked;
}

bool DiskCache::brings(Request& request, const store::KeySpace& space, std::size_t asked,
                       std::uint32_t known) {
  request.content.awaits_disk = false;
  Disk* disk = known < asked ? classes_.find(space) : nullptr;
  if (disk == nullptr) return false;
  const Session& session = requests_.session_of(request);
  const Digest next = classes_.name(space, request.content.chain[known]);
  const bool knows = disk->directory && disk->directory->find(classes_.label(space.domain), next);
  if (!knows && disk->opening) {
    const auto tokens = static_cast<std::int64_t>((asked - known) * session.shape.block_tokens);
    return request.content.awaits_disk =
               context_.now - disk->since < opening_patience(session, tokens);
  }
  if (!knows) return false;
  if (const auto run = coming_.find({disk->id, next}); run != coming_.end()) {
    return request.content.awaits_disk = runs_.at(run->second).deadline > context_.now;
  }
  std::optional<std::uint32_t>& asked_before = request.content.asked_disk;
  if (asked_before && known <= *asked_before) return false;
  const Asked by = asked_by(request, space);
  std::vector<Row> rows = found(*disk, by, known, asked, reads_left());
  if (rows.empty()) return false;
  asked_before = known;
  if (!pays(by, rows.size())) return false;
  take_dram(*disk, by, rows);
  if (rows.empty()) return false;
  const planner::Seconds patience = context_.load->patience(costs(*disk, by, rows.size()));
  read(by, known, std::move(rows), patience);
  return request.content.awaits_disk = true;
}

std::size_t DiskCache::leading(const store::KeySpace& space, std::span<const Digest> chain) {
  const Disk* disk = classes_.find(space);
  if (disk == nullptr || !disk->directory) return 0;
  const Digest label = classes_.label(space.domain);
  std::size_t count = 0;
  for (const Digest& digest : chain) {
    const Digest name = classes_.name(space, digest);
    if (!disk->directory->find(label, name) && !coming_.contains({disk->id, name})) break;
    ++count;
  }
  return count;
}

bool DiskCache::pays(const Asked& asked, std::size_t blocks) {
  Disk* disk = classes_.find(asked.space);
  if (disk == nullptr) return false;
  return context_.load->decide(costs(*disk, asked, blocks), disk->memory) > Tokens(0);
}

DiskCache::Coming DiskCache::bring(const Asked& asked) {
  Disk* disk = classes_.find(asked.space);
  Coming coming;
  coming.code = disk == nullptr || !disk->directory ? ErrorCode::kNotFound : ErrorCode::kOk;
  if (coming.code != ErrorCode::kOk) return coming;
  for (; coming.blocks < asked.chain.size(); ++coming.blocks) {
    const auto run =
        coming_.find({disk->id, classes_.name(asked.space, asked.chain[coming.blocks])});
    if (run == coming_.end()) break;
    coming.runs.insert(run->second);
  }
  const std::size_t first = coming.blocks;
  if (first == asked.chain.size()) return coming;
  std::vector<Row> rows = found(*disk, asked, first, asked.chain.size(), reads_left());
  const bool there = !rows.empty();
  take_dram(*disk, asked, rows);
  if (!rows.empty()) {
    coming.blocks += rows.size();
    const planner::Seconds patience = context_.load->patience(costs(*disk, asked, rows.size()));
    coming.runs.insert(read(asked, first, std::move(rows), patience));
  } else if (coming.runs.empty()) {
    const bool others = reads_left() == 0 || (there && !reads_.empty());
    coming.code = others  ? ErrorCode::kWouldBlock
                  : there ? ErrorCode::kOutOfMemory
                          : ErrorCode::kNotFound;
  }
  return coming;
}

std::uint64_t DiskCache::read(const Asked& asked, std::size_t known, std::vector<Row> rows,
                              planner::Seconds patience) {
  Disk& disk = *classes_.find(asked.space);
  const double most = to_seconds(context_.config.disk.patience);
  const auto from = asked.chain.begin() + static_cast<std::ptrdiff_t>(asked.apart ? known : 0);
  const auto end = asked.chain.begin() + static_cast<std::ptrdiff_t>(known + rows.size());
  const auto waits = std::min(most, patience.count());
  return start({.disk = disk.id,
                .wanted = {asked.space, asked.taker, {from, end}, {}, asked.saved},
                .rows = std::move(rows),
                .since = context_.now,
                .deadline = context_.now + Nanoseconds(static_cast<std::int64_t>(1e9 * waits)),
                .queued = disk.row_bytes() * std::ssize(reads_),
                .apart = asked.apart});
}

std::size_t DiskCache::reads_left() const {
  return kMostReads - std::min(kMostReads, reads_.size());
}

Bytes DiskCache::dram_left(const Disk& disk) const {
  const Bytes dram = store_.dram.config().slab_bytes * std::int64_t{store_.dram.config().slabs};
  return Bytes(dram.value / kDramShare) - disk.row_bytes() * std::ssize(reads_);
}

std::vector<DiskCache::Row> DiskCache::found(const Disk& disk, const Asked& asked,
                                             std::size_t first, std::size_t end,
                                             std::size_t most) const {
  std::vector<Row> rows;
  const Digest label = classes_.label(asked.space.domain);
  for (std::size_t i = first; i < end && rows.size() < most; ++i) {
    const Digest name = classes_.name(asked.space, asked.chain[i]);
    const auto place = disk.directory->find(label, name);
    if (!place || coming_.contains({disk.id, name})) break;
    rows.push_back({name, place->slot, place->generation});
  }
  return rows;
}

// The rows are read first, and then cross the link.
planner::LoadCosts DiskCache::costs(const Disk& disk, const Asked& asked, std::size_t rows) const {
  const double read = disk.rates.measured() ? disk.rates.bandwidth().value : kUsualRate;
  const double link = knowledge_.fetch_rate(asked.taker.device);
  const double queued = static_cast<double>((disk.row_bytes() * std::ssize(reads_)).value);
  planner::LoadCosts costs;
  costs.tokens = Tokens(static_cast<std::int64_t>(rows) * asked.block_tokens);
  costs.bytes = disk.row_bytes() * static_cast<std::int64_t>(rows);
  costs.bandwidth = BytesPerSecond{1 / (1 / read + 1 / link)};
  costs.queued = Bytes(static_cast<std::int64_t>(queued * link / (read + link)));
  if (disk.rates.measured()) costs.latency = disk.rates.latency();
  costs.prefill_per_token = asked.prefill_token;
  costs.ahead = asked.ahead;
  return costs;
}

void DiskCache::take_dram(const Disk& disk, const Asked& asked, std::vector<Row>& rows) {
  Bytes room = dram_left(disk);
  std::size_t count = 0;
  for (; count < rows.size() && room >= disk.row_bytes(); ++count, room -= disk.row_bytes()) {
    pool::SlotGrant grant = store_.cache.try_take(Tier::kDram, asked.taker, asked.groups);
    if (grant.code != ErrorCode::kOk) break;
    rows[count].dram = std::move(grant.slots);
  }
  rows.resize(count);
}

std::uint64_t DiskCache::start(Run run) {
  const std::uint64_t id = ++last_run_;
  Disk& disk = classes_.at(run.disk);
  disk.used = context_.now;
  const Digest label = classes_.label(run.wanted.space.domain);
  run.under_way = run.rows.size();
  for (std::size_t i = run.rows.size(); i-- > 0;) disk.directory->touch(label, run.rows[i].name);
  for (std::size_t i = 0; i < run.rows.size(); ++i) {
    const Row& row = run.rows[i];
    coming_[{run.disk, row.name}] = id;
    disk.directory->begin_read(row.slot);
    const Ticket ticket = context_.orders.next_ticket();
    reads_[ticket] = {id, i};
    context_.emit(ReadDisk{ticket,
                           {run.disk, row.slot, label, row.name, disk.shape.slot_bytes, row.dram,
                            run.deadline - context_.now},
                           row.generation});
  }
  runs_.emplace(id, std::move(run));
  return id;
}

bool DiskCache::read_ended(const Read& read, const DiskFinished& finished) {
  Run& run = runs_.at(read.run);
  Row& row = run.rows[read.row];
  Disk& disk = classes_.at(run.disk);
  disk.directory->end_read(row.slot, !finished.ok && finished.gone);
  row.here = finished.ok && !row.dropped;
  Counters::Prefixes::Disk& counters = context_.counters.prefixes.disk;
  if (finished.ok) {
    ++counters.loads;
    counters.load_bytes += static_cast<std::uint64_t>(disk.row_bytes().value);
  } else {
    ++counters.load_failures;
    run.slow = run.slow || !finished.gone;
  }
  if (finished.memory_held) {
    held_[finished.ticket] = {run.disk, std::move(row.dram)};
  } else if (!finished.ok) {
    store_.tiers.free(Tier::kDram, std::move(row.dram));
  }
  if (!finished.ok) row.dram.clear();
  if (--run.under_way > 0) return false;
  end(read.run);
  return true;
}

void DiskCache::end(std::uint64_t id) {
  Run run = std::move(runs_.extract(id).mapped());
  for (const Row& row : run.rows) coming_.erase({run.disk, row.name});
  measure(classes_.at(run.disk), run, to_seconds(context_.now - run.since));
  std::vector<SlotId> unused = adopt(run);
  for (const Row& row : run.rows) unused.insert(unused.end(), row.dram.begin(), row.dram.end());
  store_.tiers.free(Tier::kDram, std::move(unused));
  ended_.push_back(id);
}

// A chain takes only the leading rows that came: rows behind a missing one are of no use.
std::vector<SlotId> DiskCache::adopt(Run& run) {
  std::vector<SlotId> known;
  if (run.dropped) return known;
  store::FromDisk came = run.wanted;
  came.chain.resize(run.wanted.chain.size() - run.rows.size());
  const auto hand_over = [&] {
    const std::vector<SlotId> left = store_.cache.adopt(came);
    known.insert(known.end(), left.begin(), left.end());
  };
  for (std::size_t i = 0; i < run.rows.size(); ++i) {
    if (!run.rows[i].here && !run.apart) break;
    if (!run.rows[i].here) continue;
    if (run.apart) came.chain.clear(), came.rows.clear();
    came.chain.push_back(run.wanted.chain[run.wanted.chain.size() - run.rows.size() + i]);
    came.rows.push_back(std::exchange(run.rows[i].dram, {}));
    if (run.apart) hand_over();
  }
  if (!run.apart && !came.rows.empty()) hand_over();
  return known;
}

// Nobody knows when an abandoned load would have ended, so it is taken to have gone on at the same
// pace.
void DiskCache::measure(Disk& disk, const Run& run, double seconds) {
  const auto arrived = static_cast<double>(
      std::count_if(run.rows.begin(), run.rows.end(), [](const Row& row) { return row.here; }));
  const auto all = static_cast<double>(run.rows.size());
  if (arrived < all && !run.slow) return;
  const Bytes bytes = run.queued + disk.row_bytes() * std::ssize(run.rows);
  (void)disk.rates.observe(bytes, planner::Seconds(seconds * all / std::max(arrived, 0.5)));
}

bool DiskCache::expire() {
  const auto is_busy = [this](DiskId disk) {
    const auto is_its = [disk](const auto& entry) { return entry.second.disk == disk; };
    return std::any_of(runs_.begin(), runs_.end(), is_its) ||
           std::any_of(writes_.begin(), writes_.end(), is_its) ||
           std::any_of(held_.begin(), held_.end(), is_its);
  };
  classes_.go_on(is_busy,
                 [this](EngineId engine) { return !requests_.sessions().contains(engine); });
  std::set<DomainId> attached;
  for (const auto& [id, session] : requests_.sessions()) attached.insert(session.info.domain);
  classes_.forget_unused(attached);
  std::erase_if(later_,
                [this](const auto& entry) { return !classes_.all().contains(entry.first); });
  bool any = std::any_of(classes_.all().begin(), classes_.all().end(),
                         [](const auto& entry) { return entry.second.opening; });
  for (auto& [id, run] : runs_) {
    if (run.late || run.deadline > context_.now) continue;
    run.late = true;
    any = true;
    ++context_.counters.prefixes.disk.late;
  }
  return any;
}

}  // namespace kvd::core
