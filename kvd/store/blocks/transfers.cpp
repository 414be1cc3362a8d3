#include "kvd/store/blocks/transfers.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace kvd::store {

namespace {

// Somebody waits for a rotation, so a sync or fetch gives way to it.
bool in_background(Purpose purpose) {
  return purpose == Purpose::kSync || purpose == Purpose::kFetch;
}

template <class Map>
std::optional<typename Map::mapped_type> taken(Map& map, Ticket ticket) {
  auto found = map.extract(ticket);
  if (found.empty()) return std::nullopt;
  return std::move(found.mapped());
}

// Fetches of one group stay in their order. They are counted, because there are many fetches and
// few groups.
std::vector<StreamLayers::Fetch> by_group(std::vector<StreamLayers::Fetch> fetches) {
  std::vector<std::size_t> at;  // by group: where its next block goes
  for (const StreamLayers::Fetch& fetch : fetches) {
    if (at.size() < std::size_t{fetch.group} + 2) at.resize(std::size_t{fetch.group} + 2);
    ++at[fetch.group + 1];
  }
  std::partial_sum(at.begin(), at.end(), at.begin());
  std::vector<StreamLayers::Fetch> sorted(fetches.size());
  for (StreamLayers::Fetch& fetch : fetches) sorted[at[fetch.group]++] = std::move(fetch);
  return sorted;
}

}  // namespace

Ticket Transfers::start(const Blocks& blocks, const BlockTable& table, Transfer transfer) {
  CopySlots order{orders_.next_ticket(),
                  transfer.request.engine,
                  transfer.to() == Tier::kHbm,
                  transfer.slot_bytes,
                  {},
                  in_background(transfer.purpose),
                  transfer.domain};
  order.pairs.resize(transfer.places.size());
  std::transform(transfer.places.begin(), transfer.places.end(), order.pairs.begin(),
                 [&](std::uint32_t i) {
                   const Block& block = blocks.block(table[i]);
                   return CopySlots::Pair{block.at[0], block.at[1]};
                 });
  const Ticket ticket = order.ticket;
  orders_.add(std::move(order));
  transfers_.emplace(ticket, std::move(transfer));
  return ticket;
}

std::optional<Transfer> Transfers::ended(Ticket ticket) { return taken(transfers_, ticket); }

std::vector<std::uint32_t> Transfers::abandon(Ticket ticket) {
  Transfer& transfer = transfers_.at(ticket);
  transfer.abandoned = true;
  return std::exchange(transfer.places, {});
}

void Transfers::drop(EngineId engine) {
  for (const auto& [ticket, transfer] : transfers_) {
    if (transfer.abandoned && transfer.request.engine == engine) orders_.add(DropCopy{ticket});
  }
}

Ticket Transfers::start(StreamLayers stream, DomainId domain, DeviceId device) {
  stream.fetches = by_group(std::move(stream.fetches));
  stream.ticket = orders_.next_ticket();
  stream.domain = domain;
  const Ticket ticket = stream.ticket;
  streams_.emplace(ticket, Stream{stream.engine, domain, device, stream.iteration, false});
  orders_.add(std::move(stream));
  return ticket;
}

std::optional<Stream> Transfers::stream_ended(Ticket ticket) { return taken(streams_, ticket); }

void Transfers::end_streams(EngineId engine, std::uint64_t finished) {
  for (auto& [ticket, stream] : streams_) {
    if (stream.engine != engine || stream.iteration > finished || stream.ending) continue;
    stream.ending = true;
    orders_.add(EndStream{ticket});
  }
}

bool Transfers::under_way(DomainId domain, DeviceId device) const {
  const auto there = [&](const auto& entry) {
    const std::vector<DeviceId>& devices = entry.second.devices;
    return entry.second.domain == domain &&
           std::find(devices.begin(), devices.end(), device) != devices.end();
  };
  const auto streams = [&](const auto& entry) {
    return entry.second.domain == domain && entry.second.device == device;
  };
  return std::any_of(transfers_.begin(), transfers_.end(), there) ||
         std::any_of(streams_.begin(), streams_.end(), streams);
}

Bytes Transfers::coming(DeviceId device) const {
  Bytes sum;
  for (const auto& [ticket, transfer] : transfers_) {
    const auto& on = transfer.devices;
    if (transfer.to() != Tier::kHbm || std::find(on.begin(), on.end(), device) == on.end())
      continue;
    sum += transfer.slot_bytes * std::ssize(transfer.places);
  }
  return sum;
}

}  // namespace kvd::store
