#include "kvd/core/moves/needs.hpp"

#include <algorithm>

namespace kvd::core {

namespace {

/// For rotation policies that stream large requests only. Layers stream while HBM holds fewer
/// requests than this, because a whole request is then too coarse to rotate. With more, the link
/// would carry a large part of all blocks in every step, and engines would wait for it.
constexpr std::int64_t kFewRequests = 2;

}  // namespace

Bytes Needs::to_run(const Request& request) const {
  const Session& session = requests_.session_of(request);
  if (session.streaming || request.layerwise) return to_stream(request);
  return session.bytes_for(request.room_to_run());
}

Bytes Needs::to_run(const Request& request, DeviceId device) const {
  const Session& session = requests_.session_of(request);
  if (!session.on(device)) return Bytes(0);
  if (session.streaming || request.layerwise) return to_stream(request, device);
  return session.bytes_for(request.room_to_run(), device);
}

Bytes Needs::to_stream(const Request& request) const {
  const Session& session = requests_.session_of(request);
  Bytes sum;
  for (const DeviceId device : session.devices().all()) sum += to_stream(request, device);
  return sum;
}

Bytes Needs::to_stream(const Request& request, DeviceId device) const {
  const Session& session = requests_.session_of(request);
  if (!session.on(device)) return Bytes(0);
  const Tokens tokens = request.room_to_run();
  const std::int64_t ranks = session.info.devices.ranks_on(device, session.shape.ranks);
  const std::int64_t slots =
      session.blocks_for(tokens) * ranks + 2 * std::int64_t{session.groups_on(device)};
  return std::min(session.bytes_for(tokens, device), session.shape.slot_bytes() * slots);
}

bool Needs::layers_may_stream(const Session& session) const {
  return session.class_id && session.info.streams_layers && context_.placement->traits().streams &&
         session.shape.rank_groups() >= kLeastGroups;
}

bool Needs::layers_stream(const Session& session) const {
  if (session.life.dying || !layers_may_stream(session)) return false;
  if (!context_.rotation->traits().streams_only_large_requests) return true;
  const std::vector<DeviceId>& devices = session.devices().all();
  return std::any_of(devices.begin(), devices.end(),
                     [&](DeviceId device) { return has_large_requests(session, device); });
}

bool Needs::has_large_requests(const Session& session, DeviceId device) const {
  const Bytes limit = hbm_limit({session.info.domain, device});
  Bytes wanted;
  std::int64_t count = 0;
  bool too_large = false;
  for (const Request* r : session.active) {
    const Bytes needs = session.bytes_for(r->room_to_run(), device);
    wanted += needs;
    ++count;
    too_large = too_large || needs > limit - Bytes(limit.value / kLayerwiseShare);
  }
  return too_large || (count > 0 && limit < Bytes(wanted.value / count) * kFewRequests);
}

bool Needs::prefills_layerwise(const Session& session) const {
  return !session.streaming && session.info.streams_layers && !session.devices().several() &&
         session.shape.rank_groups() >= kLeastGroups &&
         context_.admission->traits().prefills_layerwise;
}

Tokens Needs::most_tokens(const Session& session) const {
  // Divides and never multiplies: a session chooses its shape, and a product of it could wrap.
  const std::int64_t slots = most_hbm_slots(session);
  const std::int64_t groups = session.groups();
  std::int64_t most = slots / groups;
  if (layers_may_stream(session)) {
    // A staging set for each rank and the open blocks stand in HBM, everything else in DRAM.
    const std::int64_t staged = (slots - 2 * groups) / std::int64_t{session.shape.ranks};
    most = std::max(most, std::min(staged, most_slots(store_.dram, session) / groups));
  }
  return Tokens(most * session.shape.block_tokens);
}

std::int64_t Needs::most_slots(const pool::TierPool& tier, const Session& session) {
  const std::int64_t a_slab = tier.config().slab_bytes / session.shape.slot_bytes();
  return a_slab * tier.most_slabs(session.info.domain);
}

std::int64_t Needs::most_hbm_slots(const Session& session) const {
  if (!session.devices().several()) {
    return most_slots(store_.hbm.of(session.devices().first()), session);
  }
  std::int64_t a_group = INT64_MAX;
  for (const DeviceId device : session.devices().all()) {
    const std::int64_t slots = most_slots(store_.hbm.of(device), session);
    a_group = std::min(a_group, slots / std::int64_t{session.groups_on(device)});
  }
  return a_group * session.groups();
}

Bytes Needs::hbm_limit(Share share) const {
  const pool::TierPool& hbm = store_.hbm.of(share.device);
  return hbm.config().slab_bytes * std::int64_t{hbm.most_slabs(share.domain)};
}

Bytes Needs::dram_limit(DomainId domain) const {
  return store_.dram.config().slab_bytes * std::int64_t{store_.dram.most_slabs(domain)};
}

}  // namespace kvd::core
