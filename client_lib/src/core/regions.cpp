#include "client_lib/src/core/regions.hpp"

#include <chrono>
#include <string>
#include <utility>

#include "client_lib/src/core/convert.hpp"
#include "client_lib/src/memory/mapping_hold.hpp"

namespace kvd::client {

Error Regions::none(std::uint64_t id) {
  return make_error(ErrorCode::kNotFound,
                    "region " + std::to_string(id) + " is not one of this client's");
}

Result<kvd_client::Region> Regions::allocate(std::uint64_t bytes, Nanoseconds timeout) {
  wire::AllocateBody body;
  body.kind = static_cast<std::uint32_t>(wire::AllocateKind::kRegion);
  body.amount = bytes;
  KVD_TRY(MappingHold::of_process().need_change());
  return link_.on_memory(timeout, [&](const SessionPtr& session, TimePoint until) {
    const auto id = answer_of<wire::AllocateReplyBody>(
        session->call(body, until),
        [](const wire::AllocateReplyBody& granted) { return RegionId(granted.region); });
    if (!id.ok()) return Result<kvd_client::Region>(id.error());
    auto region = take_region(session, *id, until);
    if (!region.ok()) (void)return_region(*session, *id, link_.clock().now() + kReturnTimeout);
    return region;
  });
}

RegionBook::Grant Regions::granted(const SessionPtr& session, RegionId id) {
  const wire::Welcome& welcome = session->welcome();
  return {id, session, {welcome.boot_id, welcome.session_key, id.value}};
}

Result<kvd_client::Region> Regions::take_region(const SessionPtr& session, RegionId id,
                                                TimePoint deadline) {
  KVD_ASSIGN_OR_RETURN(auto mapping, session->slabs().take_region(id, deadline));
  return keep({granted(session, id), std::move(mapping), std::nullopt});
}

kvd_client::Region Regions::keep(RegionBook::Entry entry) {
  const RegionMapping& mapping = *entry.mapping;
  kvd_client::Region region;
  region.address = mapping.range->data();
  region.bytes = mapping.range->size().size();
  region.granularity = mapping.slab_bytes.size();
  region.device = mapping.range->device();
  region.id = link_.regions().add(std::move(entry));
  if (!reattacher_) reattacher_ = std::make_unique<Reattacher>([this] { attach_where_lost(); });
  return region;
}

void Regions::attach_where_lost() {
  constexpr Nanoseconds kPatience = std::chrono::seconds(1);
  (void)link_.on_memory(kPatience, [](const SessionPtr&, TimePoint) { return Status(); });
}

Result<kvd_client::RegionView> Regions::view(std::uint64_t id, Nanoseconds timeout) {
  KVD_ASSIGN_OR_RETURN(const auto turn, link_.enter(link_.deadline(timeout)));
  const auto mapping = link_.regions().mapping(id);
  if (mapping == nullptr) return none(id);
  const SlabRange& range = *mapping->range;
  return kvd_client::RegionView{range.data(), range.size().size(), range.device(), mapping};
}

Status Regions::free(std::uint64_t id, Nanoseconds timeout) {
  const TimePoint until = link_.deadline(timeout);
  KVD_ASSIGN_OR_RETURN(const auto turn, link_.enter(until));
  if (link_.regions().lent(id)) {
    return make_error(ErrorCode::kWouldBlock,
                      "tensors still view region " + std::to_string(id) + ": delete them first");
  }
  auto mapping = link_.regions().mapping(id);
  if (mapping == nullptr) return none(id);
  KVD_ASSIGN_OR_RETURN(auto change, MappingHold::of_process().need_change());
  KVD_TRY(mapping->memory->quiesce(until - link_.clock().now()));
  auto entry = link_.regions().take(id);
  const Bytes bytes = entry->bytes();
  mapping->range.reset();
  change.reset();
  const SessionPtr session = link_.connector().session();
  if (session->gone()) return {};
  if (entry->parts) return close_space(session, *entry, until);
  if (entry->grant.session.lock() != session) {
    // The daemon that the region came from is gone, and the present one counts the region's bytes.
    // If it cannot be told now, it miscounts at worst.
    (void)session->call(wire::FinishCommand{orphaned_target(bytes)}, until);
    return {};
  }
  const Status status = finish_region(*session, entry->grant.daemon_id, until);
  // Regions of a daemon that is gone are handed back, too.
  return status.code() == ErrorCode::kUnavailable ? Status() : status;
}

}  // namespace kvd::client
