#include "kvd/mover/movers.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "kernels/device/fence.hpp"

namespace kvd::mover {

Movers::Movers(const std::vector<kernels::CopyQueues*>& backends, const SlabStore& slabs)
    : slabs_(&slabs) {
  for (kernels::CopyQueues* backend : backends) {
    movers_.push_back(std::make_unique<Mover>(*backend, slabs));
  }
}

void Movers::copy(const core::CopySlots& copy, std::atomic<std::uint64_t>* fence) {
  const bool one = movers_.size() == 1 || copy.pairs.empty();
  Mover& mover = one ? *movers_.front() : mover_of(copy.pairs.front().hbm.slab());
  mover.copy(copy, fence);
}

void Movers::copy_apart(const core::CopySlots& copy, std::atomic<std::uint64_t>* fence) {
  std::map<DeviceId, core::CopySlots> parts;
  for (const core::CopySlots::Pair& pair : copy.pairs) {
    const auto [part, is_new] =
        parts.try_emplace(slabs_->device_of(pair.hbm.slab()), core::CopySlots());
    if (is_new) {
      part->second = {copy.ticket, copy.engine,     copy.to_hbm, copy.slot_bytes,
                      {},          copy.background, copy.domain};
    }
    part->second.pairs.push_back(pair);
  }
  if (parts.empty()) parts.emplace(DeviceId(0), copy);
  if (fence != nullptr) due_[fence].push_back({copy.ticket, false});
  apart_[copy.ticket] = {{copy.ticket, true, Bytes(0), {}}, parts.size(), fence};
  for (const auto& [device, part] : parts) movers_[device.value]->copy(part, nullptr);
}

void Movers::copy(const core::CopyRanges& copy) {
  SlabIndex slab;
  copy.layout->each_range(
      copy.blocks.front().block,
      [&](std::size_t position, Bytes, Bytes, Bytes) { slab = copy.layout->slabs[position]; });
  mover_of(slab).copy(copy);
}

void Movers::drop(Ticket copy) {
  for (const auto& mover : movers_) mover->drop(copy);
}

void Movers::scrub(const core::Scrub& scrub) {
  if (scrub.tier == Tier::kDram || movers_.size() == 1) return movers_.front()->scrub(scrub);
  mover_of(scrub.slabs.empty() ? scrub.slots.front().slab() : scrub.slabs.front()).scrub(scrub);
}

void Movers::stream(const core::StreamLayers& stream, LayerWords words) {
  DeviceId device(0);
  if (movers_.size() > 1 && !stream.fetches.empty()) {
    device = slabs_->device_of(stream.fetches.front().pairs.begin()->hbm.slab());
  }
  streams_[stream.ticket] = device;
  movers_[device.value]->stream(stream, words);
}

void Movers::end_stream(Ticket stream) {
  const auto found = streams_.find(stream);
  if (found != streams_.end()) movers_[found->second.value]->end_stream(stream);
}

void Movers::poll(std::vector<core::CopyFinished>& finished) {
  ended_.clear();
  for (const auto& mover : movers_) mover->poll(ended_);
  for (const core::CopyFinished& copy : ended_) {
    streams_.erase(copy.ticket);
    if (apart_.contains(copy.ticket)) {
      part_ended(copy, finished);
    } else {
      finished.push_back(copy);
    }
  }
}

// The devices copy side by side: it took as long as the slowest.
void Movers::part_ended(const core::CopyFinished& part, std::vector<core::CopyFinished>& finished) {
  Apart& copy = apart_.at(part.ticket);
  copy.result.ok = copy.result.ok && part.ok;
  copy.result.dropped = copy.result.dropped || part.dropped;
  copy.result.bytes += part.bytes;
  copy.result.busy = std::max(copy.result.busy, part.busy);
  if (--copy.parts > 0) return;
  if (copy.fence != nullptr) publish(copy);
  finished.push_back(copy.result);
  apart_.erase(part.ticket);
}

// Safety rule 1: after a failure no fence that is under way is published, because its session
// cannot go on.
void Movers::publish(const Apart& copy) {
  const auto found = due_.find(copy.fence);
  if (found == due_.end()) return;
  std::deque<Due>& due = found->second;
  if (!copy.result.ok) {
    for (const Due& lost : due) {
      const auto other = apart_.find(lost.copy);
      if (other != apart_.end()) other->second.fence = nullptr;
    }
    due_.erase(found);
    return;
  }
  for (Due& one : due) one.complete = one.complete || one.copy == copy.result.ticket;
  while (!due.empty() && due.front().complete) {
    kernels::publish({copy.fence, due.front().copy.value});
    due.pop_front();
  }
  if (due.empty()) due_.erase(found);
}

bool Movers::busy() const {
  return std::any_of(movers_.begin(), movers_.end(), [](const auto& m) { return m->busy(); });
}

bool Movers::awaits_progress() const {
  return std::any_of(movers_.begin(), movers_.end(),
                     [](const auto& m) { return m->awaits_progress(); });
}

bool Movers::fall_asleep() {
  bool asleep = true;
  for (const auto& mover : movers_) asleep = mover->fall_asleep() && asleep;
  return asleep;
}

MoverCounters Movers::counters() const {
  MoverCounters sum;
  for (const auto& mover : movers_) sum += mover->counters();
  return sum;
}

}  // namespace kvd::mover
