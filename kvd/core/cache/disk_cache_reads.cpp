// What the disk brings to DRAM, for which requests, and how long they wait for it.
#include <algorithm>
#include <cmath>
#include <utility>

#include "kvd/core/cache/disk_cache.hpp"

namespace kvd::core {

namespace {

/// Rows under way: enough to keep a device busy, few enough to leave DRAM to others.
constexpr std::size_t kMostReads = 512;
constexpr std::int64_t kDramShare = 4;  ///< reads may fill one part in so many of DRAM
/// Assumed until reads have been measured: a plain NVMe drive.
constexpr double kUsualRate = 1e9;
/// The same for the remote store: a network of 10 Gbit/s.
constexpr double kUsualRemoteRate = 1e9;
/// A request waits for an answer for this part of the time that computing takes, as what it waits
/// in vain for is lost.
constexpr double kAnswerShare = 0.05;
constexpr double kLongestAnswer = 0.2;  ///< and at most for so many seconds
/// For a load that takes longer than usual it waits this part besides.
constexpr double kLateShare = 0.1;

double rate_of(const DiskClasses::Disk& disk, bool remote) {
  const planner::TierRates& rates = disk.rates[remote ? kRemoteTier : kDiskTier];
  if (rates.measured()) return rates.bandwidth().value;
  return remote ? kUsualRemoteRate : kUsualRate;
}

/// Rows of one place.
DiskCache::Count count_of(const auto& rows) {
  return {rows.size(), !rows.empty() && rows.front().place.remote ? rows.size() : 0};
}

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
  asked.ahead = planner::Seconds(knowledge_.prefill_ahead_s(request));
  return asked;
}

bool DiskCache::brings(Request& request, const store::KeySpace& space, std::size_t asked,
                       std::uint32_t known) {
  request.content.awaits_disk = false;
  Disk* disk = known < asked ? classes_.find(space) : nullptr;
  if (disk == nullptr) return false;
  const Digest& next = request.content.chain[known];
  if (!where(*disk, space, next)) {
    Asked by = asked_by(request, space);
    by.chain = by.chain.first(asked);
    return request.content.awaits_disk = awaits_answer(by, known);
  }
  if (const auto run = coming_.find({disk->id, {space, next}}); run != coming_.end()) {
    return request.content.awaits_disk = runs_.at(run->second).waits_until > context_.now;
  }
  std::optional<std::uint32_t>& asked_before = request.content.asked_disk;
  if (asked_before && known <= *asked_before) return false;
  const Asked by = asked_by(request, space);
  std::vector<Row> rows = found(*disk, by, known, asked, reads_left());
  if (rows.empty()) return false;
  asked_before = known;
  if (!pays(by, count_of(rows))) return false;
  take_dram(*disk, by, rows);
  if (rows.empty()) return false;
  const Run& run = runs_.at(read(by, known, std::move(rows), false));
  return request.content.awaits_disk = run.waits_until > context_.now;
}

DiskCache::Count DiskCache::leading(const store::KeySpace& space, std::span<const Digest> chain) {
  const Disk* disk = classes_.find(space);
  Count count;
  if (disk == nullptr) return count;
  for (const Digest& digest : chain) {
    if (!coming_.contains({disk->id, {space, digest}})) {
      const std::optional<Place> place = where(*disk, space, digest);
      if (!place) break;
      if (place->remote) ++count.remote;
    }
    ++count.blocks;
  }
  return count;
}

std::optional<DiskCache::Place> DiskCache::where(const Disk& disk, const store::KeySpace& space,
                                                 const Digest& digest) const {
  if (disk.directory) {
    const Digest name = classes_.name(space, digest);
    const auto place = disk.directory->find(classes_.label(space.domain), name);
    if (place) return Place{false, name, place->slot, place->generation};
  }
  const auto name = remote_.on() ? remote_.there(space, digest) : std::nullopt;
  return name ? std::optional(Place{true, *name, 0, 0}) : std::nullopt;
}

bool DiskCache::awaits_answer(const Asked& asked, std::size_t known) {
  const Disk* disk = classes_.find(asked.space);
  if (disk == nullptr) return false;
  const std::size_t left = asked.chain.size() - known;
  if (classes_.has_disk() && disk->opening) {
    const auto tokens = static_cast<std::int64_t>(left * asked.block_tokens);
    const Nanoseconds patience = opening_patience(asked.prefill_token, tokens);
    if (context_.now - disk->since < patience) return true;
  }
  if (!remote_.on()) return false;
  const double patience = context_.load->patience(costs(*disk, asked, {left, left})).count();
  return remote_.awaits(asked.space, asked.chain.subspan(known),
                        std::min(kLongestAnswer, kAnswerShare * patience));
}

bool DiskCache::pays(const Asked& asked, Count count) {
  Disk* disk = classes_.find(asked.space);
  if (disk == nullptr) return false;
  return context_.load->decide(costs(*disk, asked, count), disk->memory) > Tokens(0);
}

DiskCache::Coming DiskCache::bring(const Asked& asked) {
  Disk* disk = classes_.find(asked.space);
  Coming coming;
  coming.code = disk == nullptr ? ErrorCode::kNotFound : ErrorCode::kOk;
  if (coming.code != ErrorCode::kOk) return coming;
  for (; coming.blocks < asked.chain.size(); ++coming.blocks) {
    const auto run = coming_.find({disk->id, {asked.space, asked.chain[coming.blocks]}});
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
    coming.runs.insert(read(asked, first, std::move(rows), true));
  } else if (coming.runs.empty()) {
    const bool others = reads_left() == 0 || (there && !reads_.empty());
    coming.code = others  ? ErrorCode::kWouldBlock
                  : there ? ErrorCode::kOutOfMemory
                          : ErrorCode::kNotFound;
  }
  return coming;
}

// A read that takes much longer than reads do is stuck, and may be for longer than computing takes.
// Where the load policy reads though computing has been faster, it only tries.
std::uint64_t DiskCache::read(const Asked& asked, std::size_t known, std::vector<Row> rows,
                              bool is_held) {
  Disk& disk = *classes_.find(asked.space);
  const auto from = asked.chain.begin() + static_cast<std::ptrdiff_t>(asked.apart ? known : 0);
  const auto end = asked.chain.begin() + static_cast<std::ptrdiff_t>(known + rows.size());
  const planner::LoadCosts costs = this->costs(disk, asked, count_of(rows));
  const double patience = context_.load->patience(costs).count();  // endless under `always`
  const double longest = std::min(to_seconds(context_.config.disk.patience), patience);
  const double usual = costs.load(static_cast<double>(costs.tokens.value)).count();
  const bool tries = std::isfinite(patience) && disk.memory.loaded_last == false;
  const double waits = tries ? 0 : std::min(longest, 2 * usual + kLateShare * patience);
  const auto in = [this](double s) {
    return context_.now + Nanoseconds(static_cast<std::int64_t>(1e9 * s));
  };
  const bool remote = count_of(rows).remote > 0;
  const std::size_t ahead = remote ? remote_reads_ : reads_.size() - remote_reads_;
  return start({.disk = disk.id,
                .remote = remote,
                .wanted = {asked.space, asked.taker, {from, end}, {}, asked.saved},
                .rows = std::move(rows),
                .since = context_.now,
                .waits_until = in(is_held ? longest : waits),
                .deadline = in(longest),
                .queued = disk.row_bytes() * static_cast<std::int64_t>(ahead),
                .apart = asked.apart,
                .late = tries && !is_held});
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
  for (std::size_t i = first; i < end && rows.size() < most; ++i) {
    if (coming_.contains({disk.id, {asked.space, asked.chain[i]}})) break;
    const std::optional<Place> place = where(disk, asked.space, asked.chain[i]);
    if (!place || (!rows.empty() && rows.front().place.remote != place->remote)) break;
    rows.push_back({asked.chain[i], *place});
  }
  return rows;
}

// The rows are read first, and then cross the link.
planner::LoadCosts DiskCache::costs(const Disk& disk, const Asked& asked, Count count) const {
  const double part =
      count.blocks == 0 ? 0 : static_cast<double>(count.remote) / static_cast<double>(count.blocks);
  const double read = 1 / ((1 - part) / rate_of(disk, false) + part / rate_of(disk, true));
  const double link = knowledge_.fetch_rate(asked.taker.device);
  planner::LoadCosts costs;
  costs.tokens = Tokens(static_cast<std::int64_t>(count.blocks) * asked.block_tokens);
  costs.bytes = disk.row_bytes() * static_cast<std::int64_t>(count.blocks);
  costs.bandwidth = BytesPerSecond{1 / (1 / read + 1 / link)};
  const auto queued_s = [&](bool remote) {
    const std::size_t ahead = remote ? remote_reads_ : reads_.size() - remote_reads_;
    const Bytes bytes = disk.row_bytes() * static_cast<std::int64_t>(ahead);
    return static_cast<double>(bytes.value) / rate_of(disk, remote);
  };
  const double queued = (part < 1 ? queued_s(false) : 0) + (part > 0 ? queued_s(true) : 0);
  costs.queued = Bytes(static_cast<std::int64_t>(queued * costs.bandwidth.value));
  if (part < 1 && disk.rates[kDiskTier].measured()) costs.latency = disk.rates[kDiskTier].latency();
  if (part > 0 && disk.rates[kRemoteTier].measured()) {
    costs.latency = std::max(costs.latency, disk.rates[kRemoteTier].latency());
  }
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
  const DomainId domain = run.wanted.space.domain;
  const Digest label = run.remote ? classes_.remote_label(domain) : classes_.label(domain);
  run.under_way = run.rows.size();
  for (std::size_t i = run.rows.size(); !run.remote && i-- > 0;) {
    disk.directory->touch(label, run.rows[i].place.name);
  }
  for (std::size_t i = 0; i < run.rows.size(); ++i) {
    const Row& row = run.rows[i];
    coming_[{run.disk, {run.wanted.space, row.digest}}] = id;
    const Ticket ticket = context_.orders.next_ticket();
    reads_[ticket] = {id, i};
    const DiskBlock block{run.disk,
                          row.place.slot,
                          label,
                          row.place.name,
                          disk.shape.slot_bytes,
                          row.dram,
                          run.deadline - context_.now};
    if (run.remote) {
      ++remote_reads_;
      ++disk.remote_under_way;
      context_.emit(ReadRemote{ticket, disk.shape, block});
    } else {
      disk.directory->begin_read(row.place.slot);
      context_.emit(ReadDisk{ticket, block, row.place.generation});
    }
  }
  runs_.emplace(id, std::move(run));
  return id;
}

bool DiskCache::read_ended(const Read& read, const DiskFinished& finished) {
  Run& run = runs_.at(read.run);
  Row& row = run.rows[read.row];
  Disk& disk = classes_.at(run.disk);
  if (run.remote) {
    --remote_reads_;
    --disk.remote_under_way;
    remote_.learn(row.place.name, finished.ok);
  } else {
    disk.directory->end_read(row.place.slot, !finished.ok && finished.gone);
  }
  row.here = finished.ok && !row.dropped;
  auto& prefixes = context_.counters.prefixes;
  Counters::Prefixes::Lower& counters = prefixes.lower[run.remote ? kRemoteTier : kDiskTier];
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
  for (const Row& row : run.rows) coming_.erase({run.disk, {run.wanted.space, row.digest}});
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
  planner::TierRates& rates = disk.rates[run.remote ? kRemoteTier : kDiskTier];
  (void)rates.observe(bytes, planner::Seconds(seconds * all / std::max(arrived, 0.5)));
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
                         [](const auto& entry) { return entry.second.opening; }) ||
             remote_.is_asked();
  for (auto& [id, run] : runs_) {
    if (run.late || run.waits_until > context_.now) continue;
    run.late = true;
    any = true;
    auto& prefixes = context_.counters.prefixes;
    ++prefixes.lower[run.remote ? kRemoteTier : kDiskTier].late;
  }
  return any;
}

}  // namespace kvd::core
