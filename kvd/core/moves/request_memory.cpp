#include "kvd/core/moves/request_memory.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace kvd::core {

std::uint32_t RequestMemory::full_blocks(const Request& request) const {
  const Session& session = requests_.session_of(request);
  return static_cast<std::uint32_t>(request.progress.tokens.value / session.shape.block_tokens);
}

Bytes RequestMemory::hbm_bytes(const Request& request) const {
  if (!request.holds_hbm()) return Bytes(0);
  return requests_.session_of(request).shape.slot_bytes() * request.hbm_slots();
}

Bytes RequestMemory::hbm_bytes(const Request& request, DeviceId device) const {
  const Session& session = requests_.session_of(request);
  if (!session.on(device)) return Bytes(0);
  if (!session.devices().several()) return hbm_bytes(request);
  std::int64_t count = 0;
  each_hbm_slot(request,
                [&](SlotId slot) { count += store_.hbm.device_of(slot) == device ? 1 : 0; });
  return session.shape.slot_bytes() * count;
}

pool::SlotGrant RequestMemory::take(const Session& session,
                                    const std::vector<std::uint32_t>& places) {
  const auto count = static_cast<std::uint32_t>(places.size());
  if (!session.devices().several()) {
    return store_.cache.take(Tier::kHbm, session.taker(), count);
  }
  const auto device_of = [&](std::uint32_t place) {
    return session.device_of_group(place % session.groups());
  };
  std::vector<store::DeviceSlots> wanted;
  std::map<DeviceId, std::size_t> next;  // for each device, the first of its slots in the grant
  std::size_t before = 0;
  for (const DeviceId device : session.devices().all()) {
    const auto here = std::count_if(places.begin(), places.end(), [&](std::uint32_t place) {
      return device_of(place) == device;
    });
    next[device] = std::exchange(before, before + static_cast<std::size_t>(here));
    if (here > 0) wanted.push_back({device, static_cast<std::uint32_t>(here)});
  }
  pool::SlotGrant grant = store_.cache.take(session.taker(), wanted);
  if (grant.code != ErrorCode::kOk) return grant;
  std::vector<SlotId> in_order;
  in_order.reserve(count);
  for (const std::uint32_t place : places) {
    in_order.push_back(grant.slots[next.at(device_of(place))++]);
  }
  grant.slots = std::move(in_order);
  return grant;
}

// Claims ask at each step, so with one device the places are not listed.
pool::SlotGrant RequestMemory::take(const Session& session, std::uint32_t first,
                                    std::uint32_t count) {
  if (!session.devices().several()) {
    return store_.cache.take(Tier::kHbm, session.taker(), count);
  }
  std::vector<std::uint32_t> places(count);
  std::iota(places.begin(), places.end(), first);
  return take(session, places);
}

ErrorCode RequestMemory::grow(Request& request, Tokens tokens) {
  Session& session = requests_.session_of(request);
  const auto wanted = static_cast<std::uint32_t>(session.blocks_for(tokens));
  if (wanted <= request.table.blocks()) return ErrorCode::kOk;
  const std::uint32_t count = (wanted - request.table.blocks()) * session.groups();
  const pool::SlotGrant grant = take(session, request.table.size(), count);
  if (grant.code != ErrorCode::kOk) return grant.code;
  std::vector<std::uint32_t> places(count);
  std::iota(places.begin(), places.end(), request.table.size());
  store_.blocks.extend(request.table, session.taker(), count);
  store_.moves.place(request.table, places, Tier::kHbm, grant.slots);
  return ErrorCode::kOk;
}

Ticket RequestMemory::start(const Session& session, const Request& request, store::Purpose purpose,
                            std::vector<std::uint32_t> places) {
  return store_.transfers.start(store_.blocks, request.table,
                                {.purpose = purpose,
                                 .request = request.key,
                                 .domain = session.info.domain,
                                 .slot_bytes = session.shape.slot_bytes(),
                                 .places = std::move(places),
                                 .devices = session.devices().all()});
}

store::Hold RequestMemory::hold_for(const Request& request) const {
  const Session& session = requests_.session_of(request);
  return {.engine = session.id,
          .iteration = request.progress.last_iteration,
          .domain = session.info.domain,
          .slot_bytes = session.shape.slot_bytes()};
}

void RequestMemory::release_slots(const Request& request, std::vector<SlotId> hbm_slots) {
  store::Hold hold = hold_for(request);
  hold.hbm = std::move(hbm_slots);
  store_.tiers.hold(std::move(hold));
}

void RequestMemory::release_staging(Request& request) {
  store::Hold hold = hold_for(request);
  hold.copies = request.layers.streams;
  hold.hbm = request.layers.staging.take();
  store_.tiers.hold(std::move(hold));
}

void RequestMemory::release_unwritten(Session& session, Request& request) {
  const bool begins = request.begins_with_found();
  if (begins) {
    abandon_moves(request);
    release_staging(request);
    prefixes_.give_back(request);  // it finds the same blocks again
  }
  const auto kept = static_cast<std::uint32_t>(session.blocks_for(request.progress.planned));
  if (!begins && kept >= request.table.blocks()) return;
  release_slots(request, std::move(store_.blocks.truncate(request.table, kept)[0]));
  if (kept > 0) return;
  request.place = Location::kOut;
  requests_.requeue(request);
}

// The slots of a transfer stay until it ends, and until the streams that read the same slots have
// ended. Blocks that others find stay where they are whole.
void RequestMemory::abandon(Request& request, Ticket ticket) {
  store::Hold hold = hold_for(request);
  hold.copies = request.layers.streams;
  hold.copies.push_back(ticket);
  const Tier to = store_.transfers.at(ticket).to();
  const Tier from = to == Tier::kHbm ? Tier::kDram : Tier::kHbm;
  const std::vector<std::uint32_t> places = store_.transfers.abandon(ticket);
  std::vector<SlotId> read;
  if (ticket == request.moves.sync) {
    requests_.session_of(request).ahead.under_way -= hold.slot_bytes * std::ssize(places);
  }
  for (const std::uint32_t i : places) {
    const bool known = static_cast<bool>(store_.blocks.block(request.table[i]).row);
    if (known) read.push_back(store_.blocks.slot(request.table, i, from));
    for (const Tier tier : {Tier::kHbm, Tier::kDram}) {
      if (known && tier == from) continue;
      (tier == Tier::kHbm ? hold.hbm : hold.dram)
          .push_back(store_.blocks.vacate(request.table, i, tier));
    }
  }
  store_.tiers.copy_reads(ticket, from, read);
  store_.tiers.hold(std::move(hold));
}

void RequestMemory::abandon_moves(Request& request) {
  for (const Ticket ticket : {request.moves.rotation, request.moves.sync, request.moves.fetch}) {
    if (ticket) abandon(request, ticket);
  }
  request.moves = {};
}

// Streams read blocks that stay for others.
void RequestMemory::read_on(const Request& request) {
  if (request.layers.streams.empty() || request.content.named == 0) return;
  std::vector<SlotId> slots;
  for (std::uint32_t i = 0; i < request.content.named * request.table.groups(); ++i) {
    const SlotId slot = store_.blocks.slot(request.table, i, Tier::kDram);
    if (!slot.none()) slots.push_back(slot);
  }
  for (const Ticket stream : request.layers.streams) {
    store_.tiers.copy_reads(stream, Tier::kDram, slots);
  }
}

void RequestMemory::seal_full_blocks(Request& request) {
  const Session& session = requests_.session_of(request);
  const std::uint32_t groups = session.groups();
  const std::uint32_t full = full_blocks(request);
  const auto begun = static_cast<std::uint32_t>(session.blocks_for(request.progress.tokens));
  // A block whose copy another owner ordered is not there before that copy has ended.
  store_.moves.written(request.table, request.sealed * groups,
                       std::min(begun * groups, request.table.size()), full * groups);
  request.sealed = full;
  if (request.synced < full) requests_.session_of(request).ahead.wanting.insert(&request);
  prefixes_.name(request);
}

// Its blocks go last, since there may be thousands, and wait behind those of requests that ended
// before. Blocks that streams read, and that nobody else finds, are held until the streams have
// ended.
void RequestMemory::end(Request& request) {
  Session& session = requests_.session_of(request);
  abandon_moves(request);
  read_on(request);
  const bool streams = !request.layers.streams.empty();
  auto slots = store_.blocks.truncate(request.table,
                                      streams ? request.content.named : request.table.blocks());
  store::Hold streamed = hold_for(request);
  streamed.copies = request.layers.streams;
  streamed.hbm = request.layers.staging.take();
  streamed.dram = std::move(slots[1]);
  store_.tiers.hold(std::move(streamed));
  release_slots(request, std::move(slots[0]));
  store::Hold hold = hold_for(request);
  hold.dirty = session.life.dying;
  request.table.set_doomed(session.life.dying);
  session.plan.ended_since_pause = true;
  requests_.progressed(session.id, session.info.domain);
  lateness_.ended(request);
  Requests::Ended ended = requests_.end(request);
  if (ended.mapped().table.empty()) return;
  ended_.push_back({std::move(ended), std::move(hold)});
  (void)give_up_ended();
}

bool RequestMemory::go_on() {
  const bool any = give_up_ended();
  left_to_give_up_ = most_given_up_;
  return any;
}

bool RequestMemory::give_up_ended() {
  bool any = false;
  while (left_to_give_up_ > 0 && !ended_.empty()) {
    const Request& request = ended_.front().request.mapped();
    const std::uint32_t blocks = request.table.blocks(), groups = request.table.groups();
    const std::uint32_t now = std::clamp(left_to_give_up_ / groups, 1u, blocks);
    left_to_give_up_ -= std::min(left_to_give_up_, now * groups);
    give_up(ended_.front(), blocks - now);
    if (now == blocks) ended_.pop_front();
    any = true;
  }
  requests_.set_behind(!ended_.empty());
  return any;
}

// Memory that its engine could write when it went, and that nobody else finds, is zeroed.
void RequestMemory::give_up(Ended& ended, std::uint32_t kept) {
  Request& request = ended.request.mapped();
  std::vector<store::RowId> left = prefixes_.rows(request);
  request.content.named = std::min(request.content.named, kept);
  left.erase(left.begin(), left.begin() + request.content.named);
  auto slots = store_.cache.truncate(request.table, kept, request.table.doomed());
  const std::vector<SlotId> unwanted = prefixes_.vacate_parked(left);
  slots[0].insert(slots[0].end(), unwanted.begin(), unwanted.end());
  store::Hold hold = ended.hold;
  hold.dirty = hold.dirty || !requests_.sessions().contains(hold.engine);
  hold.hbm = std::move(slots[0]);
  hold.dram = std::move(slots[1]);
  store_.tiers.hold(std::move(hold));
}

std::size_t RequestMemory::blocks_behind() const {
  std::size_t sum = 0;
  for (const Ended& ended : ended_) sum += ended.request.mapped().table.size();
  return sum;
}

Bytes RequestMemory::hbm_behind(EngineId engine) const {
  Bytes sum;
  for (const Ended& ended : ended_) {
    const store::BlockTable& table = ended.request.mapped().table;
    if (ended.hold.engine != engine || !table.doomed()) continue;
    for (std::uint32_t i = 0; i < table.size(); ++i) {
      const bool alone = !store_.blocks.shared(table, i);
      if (alone && store_.blocks.has(table, i, Tier::kHbm)) sum += ended.hold.slot_bytes;
    }
  }
  return sum;
}

}  // namespace kvd::core
