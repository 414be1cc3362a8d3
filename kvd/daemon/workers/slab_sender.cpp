#include "kvd/daemon/workers/slab_sender.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "ipc/wire/attach_codec.hpp"

namespace kvd::daemon {

namespace {

/// How long a slab may wait for a descriptor before what it was for is ended.
constexpr Nanoseconds kSlabPatience = std::chrono::seconds(2);
constexpr const char* kDoesNotRead = "does not read its attach socket";

wire::MapSlab message_of(const core::SendSlab& slab, Bytes bytes, std::uint16_t version) {
  wire::MapSlab message;
  message.header.version = version;
  message.region = slab.region.value;
  message.bytes = static_cast<std::uint64_t>(bytes.value);
  message.slab = slab.slab.value;
  message.position = slab.position;
  message.count = slab.count;
  return message;
}

}  // namespace

void SlabSender::send(const core::SendSlab& slab) {
  const DeviceId device = uses_.slabs.device_of(slab.slab);
  uses_.groups.expect(slab.engine, slab.slab, device);
  uses_.sessions.each_rank(slab.engine, [&](const Peer& peer) {
    if (peer.device != device) return;
    core::SendSlab to_rank = slab;
    to_rank.engine = peer.engine;
    const bool queued = std::any_of(unsent_.begin(), unsent_.end(), [&](const Unsent& unsent) {
      return unsent.slab.engine == peer.engine;
    });
    if (queued || !send_to(to_rank)) {
      unsent_.push_back({to_rank, uses_.events.now() + kSlabPatience});
    }
  });
}

bool SlabSender::send_to(const core::SendSlab& slab) {
  Peer* peer = uses_.sessions.find(slab.engine);
  if (!peer) return true;  // nobody waits for it any more
  const auto fd = uses_.slabs.export_slab(Tier::kHbm, slab.slab);
  if (!fd.ok()) return false;
  wire::MapSlab message = message_of(slab, uses_.slabs.slab_bytes(Tier::kHbm), peer->version);
  const int fds[] = {fd->get()};
  if (!peer->connection.send(wire::seal(message), fds).ok()) {
    uses_.ends.drop(slab.engine, kDoesNotRead);
  }
  return true;
}

void SlabSender::ask_unmap(const core::AskUnmap& ask) {
  const DeviceId device = uses_.slabs.device_of(ask.slab);
  uses_.sessions.each_rank(ask.engine, [&](Peer& peer) {
    if (peer.device != device) return;
    wire::UnmapSlab message;
    message.notice.header.version = peer.version;
    message.notice.slab = ask.slab.value;
    if (!peer.connection.send(wire::seal(message)).ok()) {
      uses_.ends.drop(peer.engine, kDoesNotRead);
    }
  });
}

void SlabSender::withdraw(SlabIndex slab) {
  std::erase_if(unsent_, [&](const Unsent& unsent) { return unsent.slab.slab == slab; });
}

bool SlabSender::hold(const core::Reply& reply) {
  const auto* granted = std::get_if<core::RegionReply>(&reply.body);
  if (!granted) return false;
  const bool incomplete = std::any_of(unsent_.begin(), unsent_.end(), [&](const Unsent& unsent) {
    return unsent.slab.region == granted->region;
  });
  if (incomplete) held_.push_back(reply);
  return incomplete;
}

void SlabSender::retry() {
  std::set<EngineId> stuck;
  for (const Unsent& unsent : std::exchange(unsent_, {})) {
    if (!stuck.contains(unsent.slab.engine) && send_to(unsent.slab)) continue;
    stuck.insert(unsent.slab.engine);
    if (uses_.events.now() < unsent.deadline) {
      unsent_.push_back(unsent);
    } else {
      give_up(unsent.slab);
    }
  }
}

std::vector<core::Reply> SlabSender::take_held() { return std::exchange(held_, {}); }

// The engine is innocent: only what the slab was for ends. Blocks are simply asked for again.
void SlabSender::give_up(const core::SendSlab& slab) {
  uses_.log.warn(slab.engine, "no file descriptor for slab " + std::to_string(slab.slab.value) +
                                  " of engine " + std::to_string(slab.engine.value) +
                                  ": raise RLIMIT_NOFILE");
  // Other ranks may have mapped it, so it cannot be taken back.
  if (const Peer* peer = uses_.sessions.find(slab.engine); peer && peer->group) {
    return uses_.ends.drop(slab.engine, "kvd had no file descriptor for a slab of it");
  }
  for (core::Reply& reply : held_) {
    const auto* granted = std::get_if<core::RegionReply>(&reply.body);
    if (!granted || granted->region != slab.region) continue;
    reply.body = make_error(ErrorCode::kUnavailable,
                            "kvd had no file descriptor free to hand over the region: try again, "
                            "or raise its RLIMIT_NOFILE");
  }
  uses_.events.feed(core::SlabUnsent{slab.engine, slab.slab, slab.region});
}

}  // namespace kvd::daemon
