// What the disk brings to DRAM, for whom, and how long that is waited for.
#include <algorithm>
#include <utility>

#include "kvd/core/disk_cache.hpp"

namespace kvd::core {

namespace {

/// Rows under way: enough to keep a device busy, few enough to leave DRAM to others.
constexpr std::size_t kMostReads = 512;
constexpr std::int64_t kDramShare = 4;  ///< one part in so many of DRAM is filled from disk
/// Until reads were measured: a plain NVMe drive.
constexpr double kUsualRate = 1e9;

}  // namespace

bool DiskCache::brings(Request& request, const store::KeySpace& space, std::size_t asked,
                       std::uint32_t known) {
  request.content.awaits_disk = false;
  Disk* disk = on() && known < asked ? disk_of(space) : nullptr;
  if (disk == nullptr) return false;
  const Session& session = requests_.session_of(request);
  const Digest next = name_of(space, request.content.chain[known]);
  const bool knows = disk->directory && disk->directory->find(label_of(space.domain), next);
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
  std::vector<Row> rows = found(*disk, request, space, asked, known, reads_left());
  if (rows.empty()) return false;
  asked_before = known;
  if (context_.load->decide(costs(*disk, session, rows.size()), disk->memory) == Tokens(0))
    return false;
  take_dram(session, rows);
  if (rows.empty()) return false;
  const planner::Seconds patience = context_.load->patience(costs(*disk, session, rows.size()));
  read(request, space, known, std::move(rows), patience, false);
  return request.content.awaits_disk = true;
}

// Where the disk brings all before anything could be computed, or nothing in time, the choice is
// between the two.
bool DiskCache::brings_behind(Request& request, const store::KeySpace& space, std::size_t asked,
                              std::uint32_t known) {
  const Session& session = requests_.session_of(request);
  if (!context_.load->overlaps() || !session.info.skips_ahead || known >= asked) return false;
  const Disk* disk = on() ? disk_of(space) : nullptr;
  std::optional<std::uint32_t>& asked_before = request.content.asked_disk;
  if (disk == nullptr || !disk->directory || (asked_before && known <= *asked_before)) return false;
  const std::int64_t room = dram_left(session) / disk->row_bytes();
  const std::int64_t most = std::min(static_cast<std::int64_t>(reads_left()), room);
  if (most <= 0) return false;
  const std::vector<Row> there = found(*disk, request, space, asked, known, 2 * kMostReads);
  if (there.empty()) return false;
  if (begun(request)) asked_before = known + static_cast<std::uint32_t>(there.size() / 2);
  planner::LoadCosts all = costs(*disk, session, there.size());
  // Before it has begun its own prompt counts as ahead, too, as for load.decide: a head takes time
  // of the engine that others need, and what is loaded takes none (planner/MODEL.md).
  if (begun(request)) {
    const Tokens own = request.goal.prompt - request.progress.planned;
    all.ahead = std::max(planner::Seconds(0), all.ahead - prefill(session, own));
  }
  // One iteration more, and a pipelined engine's next one is missed.
  all.apart = planner::Seconds(2 * session.costs.decode_s);
  const std::int64_t head = head_of(request, all, most);
  if (head == 0 || head >= std::ssize(there)) return false;
  std::vector<Row> rows(there.begin() + head,
                        there.begin() + std::min(head + most, std::ssize(there)));
  take_dram(session, rows);
  if (rows.empty()) return false;
  const std::uint32_t first = known + static_cast<std::uint32_t>(head);
  request.content.tail = {first, first + static_cast<std::uint32_t>(rows.size())};
  asked_before = request.content.tail.end - 1;
  read(request, space, first, std::move(rows), context_.load->patience(all), true);
  return true;
}

// To the nearest block. One that computes already has a head.
std::int64_t DiskCache::head_of(const Request& request, const planner::LoadCosts& all,
                                std::int64_t rows) const {
  const std::int64_t block_tokens = requests_.session_of(request).shape.block_tokens;
  const Tokens most(rows * block_tokens);
  const Tokens head = all.head(most);
  if (head > Tokens(0) && !all.overlapping_wins(most)) return all.tokens.value / block_tokens;
  const std::int64_t blocks = (head.value + block_tokens / 2) / block_tokens;
  return begun(request) ? std::max<std::int64_t>(1, blocks) : blocks;
}

bool DiskCache::begun(const Request& request) { return request.progress.last_iteration > 0; }

planner::Seconds DiskCache::prefill(const Session& session, Tokens tokens) {
  return planner::Seconds(Knowledge::prefill_token_s(session) * static_cast<double>(tokens.value));
}

std::optional<TimePoint> DiskCache::expected(const Request& request, const store::KeySpace& space,
                                             std::uint32_t block) {
  const Disk* disk = on() ? disk_of(space) : nullptr;
  if (disk == nullptr) return std::nullopt;
  const auto run = coming_.find({disk->id, name_of(space, request.content.chain[block])});
  if (run == coming_.end()) return std::nullopt;
  return runs_.at(run->second).expected;
}

void DiskCache::read(const Request& request, const store::KeySpace& space, std::size_t known,
                     std::vector<Row> rows, planner::Seconds patience, bool behind) {
  const Session& session = requests_.session_of(request);
  Disk& disk = *disk_of(space);
  const double most = to_seconds(context_.config.disk.patience);
  const std::vector<Digest>& chain = request.content.chain;
  const auto end = chain.begin() + static_cast<std::ptrdiff_t>(known + rows.size());
  const planner::LoadCosts load = costs(disk, session, rows.size());
  const auto from_now = [&](planner::Seconds time) {
    return context_.now +
           Nanoseconds(static_cast<std::int64_t>(1e9 * std::min(most, time.count())));
  };
  start({.disk = disk.id,
         .wanted = {space, session.taker(), {chain.begin(), end}, {}, knowledge_.saved(session)},
         .rows = std::move(rows),
         .since = context_.now,
         .expected = from_now(load.load(static_cast<double>(load.tokens.value))),
         .deadline = from_now(patience),
         .queued = disk.row_bytes() * std::ssize(reads_),
         .behind = behind});
}

std::size_t DiskCache::reads_left() const {
  return kMostReads - std::min(kMostReads, reads_.size());
}

Bytes DiskCache::dram_left(const Session& session) const {
  const Bytes dram = store_.dram.config().slab_bytes * std::int64_t{store_.dram.config().slabs};
  const Bytes row = session.shape.slot_bytes() * std::int64_t{session.groups()};
  return Bytes(dram.value / kDramShare) - row * std::ssize(reads_);
}

std::vector<DiskCache::Row> DiskCache::found(const Disk& disk, const Request& request,
                                             const store::KeySpace& space, std::size_t asked,
                                             std::uint32_t first, std::size_t most) const {
  std::vector<Row> rows;
  const Digest label = label_of(space.domain);
  for (std::size_t i = first; i < asked && rows.size() < most; ++i) {
    const Digest name = name_of(space, request.content.chain[i]);
    const auto place = disk.directory->find(label, name);
    if (!place || coming_.contains({disk.id, name})) break;
    rows.push_back({name, place->slot, place->generation});
  }
  return rows;
}

// They are read, and then cross the link.
planner::LoadCosts DiskCache::costs(const Disk& disk, const Session& session,
                                    std::size_t rows) const {
  const double read = disk.rates.measured() ? disk.rates.bandwidth().value : kUsualRate;
  const double link = knowledge_.fetch_rate(session.devices().first());
  const double queued = static_cast<double>((disk.row_bytes() * std::ssize(reads_)).value);
  planner::LoadCosts costs;
  costs.tokens = Tokens(static_cast<std::int64_t>(rows) * session.shape.block_tokens);
  costs.bytes = disk.row_bytes() * static_cast<std::int64_t>(rows);
  costs.bandwidth = BytesPerSecond{1 / (1 / read + 1 / link)};
  costs.queued = Bytes(static_cast<std::int64_t>(queued * link / (read + link)));
  if (disk.rates.measured()) costs.latency = disk.rates.latency();
  costs.prefill_per_token = planner::Seconds(Knowledge::prefill_token_s(session));
  costs.ahead = planner::Seconds(knowledge_.prefill_ahead_s(session));
  return costs;
}

void DiskCache::take_dram(const Session& session, std::vector<Row>& rows) {
  const Bytes row_bytes = session.shape.slot_bytes() * std::int64_t{session.groups()};
  Bytes room = dram_left(session);
  std::size_t count = 0;
  for (; count < rows.size() && room >= row_bytes; ++count, room -= row_bytes) {
    pool::SlotGrant grant = store_.cache.try_take(Tier::kDram, session.taker(), session.groups());
    if (grant.code != ErrorCode::kOk) break;
    rows[count].dram = std::move(grant.slots);
  }
  rows.resize(count);
}

void DiskCache::start(Run run) {
  const std::uint64_t id = ++last_run_;
  Disk& disk = at(run.disk);
  const Digest label = label_of(run.wanted.space.domain);
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
}

bool DiskCache::read_ended(const Read& read, const DiskFinished& finished) {
  Run& run = runs_.at(read.run);
  Row& row = run.rows[read.row];
  Disk& disk = at(run.disk);
  disk.directory->end_read(row.slot, !finished.ok && finished.gone);
  row.here = finished.ok;
  Counters::Prefixes::Disk& counters = context_.counters.prefixes.disk;
  if (finished.ok) {
    ++counters.loads;
    counters.load_bytes += static_cast<std::uint64_t>(disk.row_bytes().value);
  } else {
    ++counters.load_failures;
    run.slow = run.slow || !finished.gone;
  }
  if (finished.memory_held) {
    held_[finished.ticket] = std::move(row.dram);
  } else if (!finished.ok) {
    store_.tiers.free(Tier::kDram, std::move(row.dram));
  }
  if (!finished.ok) row.dram.clear();
  if (--run.under_way > 0) return false;
  end(read.run);
  return true;
}

// The leading rows that came are cached; without them, those behind are of no use.
void DiskCache::end(std::uint64_t id) {
  Run run = std::move(runs_.extract(id).mapped());
  Disk& disk = at(run.disk);
  const std::size_t before = run.wanted.chain.size() - run.rows.size();
  std::size_t here = 0;
  while (here < run.rows.size() && run.rows[here].here && !run.dropped) ++here;
  std::vector<SlotId> unused;
  for (std::size_t i = 0; i < run.rows.size(); ++i) {
    coming_.erase({run.disk, run.rows[i].name});
    std::vector<SlotId>& slots = run.rows[i].dram;
    if (i < here) {
      run.wanted.rows.push_back(std::move(slots));
    } else {
      unused.insert(unused.end(), slots.begin(), slots.end());
    }
  }
  measure(disk, run, to_seconds(context_.now - run.since));
  run.wanted.chain.resize(before + here);
  if (here > 0) {
    const std::vector<SlotId> known = store_.cache.adopt(run.wanted, context_.now);
    unused.insert(unused.end(), known.begin(), known.end());
  }
  store_.tiers.free(Tier::kDram, std::move(unused));
}

// Of a load that was given up nobody knows when it would have ended: as if it had gone on like
// that.
void DiskCache::measure(Disk& disk, const Run& run, double seconds) {
  const auto arrived = static_cast<double>(
      std::count_if(run.rows.begin(), run.rows.end(), [](const Row& row) { return row.here; }));
  const auto all = static_cast<double>(run.rows.size());
  if (arrived < all && !run.slow) return;
  const Bytes bytes = run.queued + disk.row_bytes() * std::ssize(run.rows);
  (void)disk.rates.observe(bytes, planner::Seconds(seconds * all / std::max(arrived, 0.5)));
}

bool DiskCache::expire() {
  bool any = std::any_of(disks_.begin(), disks_.end(), [](const Disk& d) { return d.opening; });
  for (auto& [id, run] : runs_) {
    if (run.late || run.deadline > context_.now) continue;
    run.late = true;
    if (run.behind) continue;
    any = true;
    ++context_.counters.prefixes.disk.late;
  }
  return any;
}

}  // namespace kvd::core
