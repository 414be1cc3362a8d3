#include "client_lib/src/core/core.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <variant>

#include "client_lib/src/core/convert.hpp"
#include "client_lib/src/memory/mapping_hold.hpp"

/// Attaching, leaving, and the calls of level 1; those of level 3 stand in core_requests.cpp.
namespace kvd::client {

Status finish_region(Session& session, RegionId region, TimePoint deadline) {
  KVD_TRY(session.call(wire::FinishCommand{target_of(region)}, deadline));
  return {};
}

Status return_region(Session& session, RegionId region, TimePoint deadline) {
  session.slabs().discard_region(region);
  return finish_region(session, region, deadline);
}

Error no_region(std::uint64_t id) {
  return make_error(ErrorCode::kNotFound,
                    "region " + std::to_string(id) + " is not one of this client's");
}

void return_untaken_regions(Session& session, TimePoint deadline) {
  for (const RegionId region : session.slabs().untaken_regions()) {
    // This need not succeed: a daemon that does not answer now gets everything back with the
    // session.
    (void)return_region(session, region, deadline);
  }
}

Core::Core(Introduction introduction, Nanoseconds attach_timeout, std::string model)
    : attach_timeout_(attach_timeout),
      model_(std::move(model)),
      connector_(std::move(introduction), attach_timeout, clock_) {}

Status Core::connect() { return connector_.connect(deadline(attach_timeout_)); }

void Core::close() {
  reattacher_.reset();
  const auto turn = gate_.enter();
  const SessionPtr session = connector_.session();
  const bool attached = session && !session->gone();
  if (attached) session->end_waits();
  // Memory that is lent, or may still be in use, stays mapped. The daemon must not be told that it
  // is unmapped, so the session just ends, and the daemon keeps the memory back until this process
  // has ended.
  const bool maps_nothing = regions_.clear(kLongestDrain);
  if (attached && maps_nothing) session->leave();
}

TimePoint Core::deadline(Nanoseconds timeout) const {
  const TimePoint now = clock_.now();
  return now + std::clamp(timeout, Nanoseconds(0), TimePoint::max() - now);
}

Status Core::check_fork() const {
  if (!forked()) return {};
  return make_error(ErrorCode::kPeerGone,
                    "this client belongs to the parent process; open another one");
}

Result<CallGate::Turn> Core::enter(TimePoint deadline) {
  KVD_TRY(check_fork());
  return gate_.enter(deadline);
}

Result<wire::Welcome> Core::welcome() const {
  KVD_TRY(check_fork());
  return connector_.session()->welcome();
}

int Core::device() const {
  const SessionPtr session = connector_.session();
  return session->gpu() != nullptr ? session->gpu()->ordinal() : SlabRange::kNoDevice;
}

Status Core::ping(Nanoseconds timeout) {
  return on_memory(timeout, [](const SessionPtr& session, TimePoint until) -> Status {
    KVD_TRY(session->call(wire::PingCommand{}, until));
    return {};
  });
}

Result<kvd_client::Stats> Core::stats(Nanoseconds timeout) {
  return on_memory(timeout, [](const SessionPtr& session, TimePoint until) {
    return answer_of<wire::StatsReplyBody>(
        session->call(wire::StatsCommand{}, until),
        [](const wire::StatsReplyBody& stats) { return to_public(stats); });
  });
}

Result<kvd_client::Region> Core::allocate_region(std::uint64_t bytes, Nanoseconds timeout) {
  wire::AllocateBody body;
  body.kind = static_cast<std::uint32_t>(wire::AllocateKind::kRegion);
  body.amount = bytes;
  KVD_TRY(MappingHold::of_process().need_change());
  return on_memory(timeout, [&](const SessionPtr& session, TimePoint until) {
    const auto id = answer_of<wire::AllocateReplyBody>(
        session->call(body, until),
        [](const wire::AllocateReplyBody& granted) { return RegionId(granted.region); });
    if (!id.ok()) return Result<kvd_client::Region>(id.error());
    auto region = take_region(session, *id, until);
    if (!region.ok()) (void)return_region(*session, *id, clock_.now() + kReturnTimeout);
    return region;
  });
}

Result<kvd_client::Region> Core::take_region(const SessionPtr& session, RegionId id,
                                             TimePoint deadline) {
  KVD_ASSIGN_OR_RETURN(auto mapping, session->slabs().take_region(id, deadline));
  return keep({id, session, std::move(mapping), std::nullopt});
}

kvd_client::Region Core::keep(RegionBook::Entry entry) {
  const RegionMapping& mapping = *entry.mapping;
  kvd_client::Region region;
  region.address = mapping.range->data();
  region.bytes = mapping.range->size().size();
  region.granularity = mapping.slab_bytes.size();
  region.device = mapping.range->device();
  region.id = regions_.add(std::move(entry));
  if (!reattacher_) reattacher_ = std::make_unique<Reattacher>([this] { attach_where_lost(); });
  return region;
}

void Core::attach_where_lost() {
  constexpr Nanoseconds kPatience = std::chrono::seconds(1);
  if (!connector_.session()->gone()) return;
  (void)on_memory(kPatience, [](const SessionPtr&, TimePoint) { return Status(); });
}

Result<kvd_client::RegionView> Core::view_region(std::uint64_t id, Nanoseconds timeout) {
  KVD_ASSIGN_OR_RETURN(const auto turn, enter(deadline(timeout)));
  const auto mapping = regions_.mapping(id);
  if (mapping == nullptr) return no_region(id);
  const SlabRange& range = *mapping->range;
  return kvd_client::RegionView{range.data(), range.size().size(), range.device(), mapping};
}

Status Core::free_region(std::uint64_t id, Nanoseconds timeout) {
  const TimePoint until = deadline(timeout);
  KVD_ASSIGN_OR_RETURN(const auto turn, enter(until));
  if (regions_.lent(id)) {
    return make_error(ErrorCode::kWouldBlock,
                      "tensors still view region " + std::to_string(id) + ": delete them first");
  }
  auto mapping = regions_.mapping(id);
  if (mapping == nullptr) return no_region(id);
  KVD_ASSIGN_OR_RETURN(auto change, MappingHold::of_process().need_change());
  KVD_TRY(mapping->memory->quiesce(until - clock_.now()));
  auto entry = regions_.take(id);
  const Bytes bytes = entry->bytes();
  mapping->range.reset();
  change.reset();
  const SessionPtr session = connector_.session();
  if (session->gone()) return {};
  if (entry->session.lock() != session) {
    // The daemon that the region came from is gone, and the present one counts its bytes. A daemon
    // that cannot be told now miscounts at worst.
    if (bytes > Bytes(0)) {
      (void)session->call(wire::FinishCommand{orphaned_target(bytes)}, until);
    }
    return {};
  }
  if (entry->parts) return close_space(*session, *entry, until);
  const Status status = finish_region(*session, entry->daemon_id, until);
  // Regions of a daemon that is gone are handed back, too.
  return status.code() == ErrorCode::kUnavailable ? Status() : status;
}

}  // namespace kvd::client
