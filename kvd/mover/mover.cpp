#include "kvd/mover/mover.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include "kernels/copy/merge_runs.hpp"
#include "kvd/mover/runs.hpp"

namespace kvd::mover {

namespace {

using kernels::Direction;

constexpr std::uint32_t kBurstsInQueue = 2;
/// Bursts are whole pages, whatever the rate.
constexpr std::int64_t kBurstStep = 4096;
/// Shorter ones say more about latency than about the link.
constexpr Bytes kWorthMeasuring = kKiB * 64;
/// Bursts of streamed layers in a row, at most, while another domain waits for a copy.
constexpr std::uint32_t kLayersInARow = 3;
/// Weight of the newest burst in the measured rate.
constexpr double kNewest = 0.2;

}  // namespace

void Mover::copy(const core::CopySlots& copy, std::atomic<std::uint64_t>* fence) {
  const Direction direction = copy.to_hbm ? Direction::kHostToDevice : Direction::kDeviceToHost;
  auto runs = runs_of(*slabs_, copy.pairs, copy.slot_bytes, copy.to_hbm);
  count_runs(direction, runs);
  lane(direction).jobs.add({.job = copy.ticket,
                            .owner = {copy.domain, copy.engine},
                            .urgency = copy.background ? Urgency::kBackground : Urgency::kAwaited,
                            .runs = RunCursor(std::move(runs)),
                            .fence = {fence, copy.ticket.value}});
  pump(direction);
}

void Mover::copy(const core::CopyRanges& copy) {
  const Direction direction = copy.to_hbm ? Direction::kHostToDevice : Direction::kDeviceToHost;
  RunLengths& lengths = counters_.runs[static_cast<std::size_t>(direction)];
  lane(direction).jobs.add(
      {.job = copy.ticket,
       .owner = {copy.domain, copy.engine},
       .runs = RunCursor(std::make_unique<BlockRuns>(*slabs_, copy, lengths))});
  pump(direction);
}

void Mover::drop(Ticket copy) {
  for (const Direction direction : {Direction::kHostToDevice, Direction::kDeviceToHost}) {
    lane(direction).jobs.drop(copy);
    pump(direction);
  }
}

void Mover::move(const core::MoveSlots& move) {
  lane(Direction::kDeviceToHost)
      .jobs.add({.job = move.ticket,
                 .owner = {move.domain, EngineId()},
                 .urgency = Urgency::kBackground,
                 .runs = RunCursor(runs_of(*slabs_, move)),
                 .in_place = true});
  pump(Direction::kDeviceToHost);
}

void Mover::scrub(const core::Scrub& scrub) {
  const Direction direction =
      scrub.tier == Tier::kHbm ? Direction::kHostToDevice : Direction::kDeviceToHost;
  std::vector<kernels::CopyExtent> extents;
  for (const SlabIndex slab : scrub.slabs) {
    extents.push_back({slabs_->address(scrub.tier, slab), 0, slabs_->slab_bytes(scrub.tier)});
  }
  for (const SlotId slot : scrub.slots) {
    extents.push_back({slabs_->address(scrub.tier, slot, scrub.slot_bytes), 0, scrub.slot_bytes});
  }
  lane(direction).jobs.add({.job = scrub.ticket,
                            .owner = {scrub.domain, EngineId()},
                            .runs = RunCursor(kernels::merge_runs(std::move(extents)))});
  pump(direction);
}

void Mover::stream(const core::StreamLayers& stream, LayerWords words) {
  layers_.begin(stream, words);
  pump(Direction::kHostToDevice);
}

void Mover::end_stream(Ticket stream) {
  layers_.end(stream);
  pump(Direction::kHostToDevice);
}

void Mover::poll(std::vector<core::CopyFinished>& finished) {
  layers_.look();
  take_completions();
  pump(Direction::kHostToDevice);
  pump(Direction::kDeviceToHost);
  finished.insert(finished.end(), ended_.begin(), ended_.end());
  ended_.clear();
  news_ = false;
}

void Mover::take_completions() {
  completions_.clear();
  backend_->poll(completions_);
  for (const kernels::Completion& done : completions_) finished(done);
}

// A copy that is reported twice is unknown the second time.
void Mover::finished(const kernels::Completion& done) {
  const auto found = flying_.find(done.ticket);
  if (found == flying_.end()) return;
  const Flying flying = found->second;
  flying_.erase(found);
  Lane& queue = lane(flying.direction);
  --queue.in_flight;
  queue.queued -= flying.bytes;
  queue.pieces -= flying.pieces;
  const bool ok = done.status.ok();
  if (ok && !flying.in_place && done.bytes >= kWorthMeasuring && done.busy.count() > 0) {
    const double rate = static_cast<double>(done.bytes.value) / to_seconds(done.busy);
    queue.rate = queue.rate == 0 ? rate : queue.rate + kNewest * (rate - queue.rate);
  }
  if (flying.layer) {
    layers_.finished(done.ticket, ok, done.bytes, done.busy);
  } else {
    queue.jobs.finished(done.ticket, ok, done.bytes, done.busy);
  }
}

/// Fills the device's queue.
void Mover::pump(Direction direction) {
  Lane& queue = lane(direction);
  const Bytes burst = burst_bytes(queue);
  while (queue.in_flight < kBurstsInQueue || (queue.queued < burst && queue.pieces < kMostPieces)) {
    if (!submit_next(direction, burst)) break;
  }
  queue.jobs.take_ended(ended_);
  if (direction == Direction::kHostToDevice) layers_.take_ended(ended_);
  news_ = !ended_.empty();
}

bool Mover::submit_next(Direction direction, Bytes limit) {
  const Ticket number(last_burst_ + 1);
  if (direction == Direction::kDeviceToHost) return submit_copy(direction, number, limit);
  if (layers_row_ >= kLayersInARow && submit_copy(direction, number, limit, layers_of_))
    return true;
  return submit_layers(number, limit) || submit_copy(direction, number, limit);
}

bool Mover::submit_layers(Ticket number, Bytes limit) {
  auto burst = layers_.next(number, limit);
  if (!burst) return false;
  layers_of_ = burst->domain;
  ++layers_row_;
  submit(Direction::kHostToDevice, number, {.extents = std::move(burst->extents), .fence = {}},
         true);
  return true;
}

// If one domain's streams keep the link busy, another domain still gets the copies that it waits
// for. Copies that nobody waits for are not urgent.
bool Mover::submit_copy(Direction direction, Ticket number, Bytes limit,
                        std::optional<DomainId> but) {
  CopyJobs& jobs = lane(direction).jobs;
  auto burst = jobs.next(Urgency::kAwaited, number, limit, but);
  if (!burst && !but) burst = jobs.next(Urgency::kBackground, number, limit);
  if (!burst) return false;
  if (direction == Direction::kHostToDevice) layers_row_ = 0;
  submit(direction, number, std::move(*burst), false);
  return true;
}

void Mover::submit(Direction direction, Ticket number, CopyJobs::Burst burst, bool layer) {
  last_burst_ = number.value;
  const Bytes bytes = length_of(burst.extents);
  const std::size_t pieces = burst.extents.size();
  flying_.emplace(number, Flying{direction, bytes, pieces, layer, burst.in_place});
  Lane& queue = lane(direction);
  ++queue.in_flight;
  queue.queued += bytes;
  queue.pieces += pieces;
  Status status =
      backend_->submit({number, direction, std::move(burst.extents), burst.fence, burst.in_place});
  if (!status.ok()) finished({number, std::move(status), Bytes(0), {}});
}

Bytes Mover::burst_bytes(const Lane& queue) const {
  const auto fits = static_cast<std::int64_t>(queue.rate * to_seconds(limits_.time));
  const std::int64_t bytes = std::clamp(fits, limits_.least.value, limits_.most.value);
  return Bytes(std::max(kBurstStep, bytes / kBurstStep * kBurstStep));
}

void Mover::count_runs(Direction direction, const std::vector<kernels::CopyExtent>& runs) {
  RunLengths& lengths = counters_.runs[static_cast<std::size_t>(direction)];
  for (const kernels::CopyExtent& run : runs) lengths.add(run.length);
}

}  // namespace kvd::mover
