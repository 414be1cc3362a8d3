#include "kvd/core/state.hpp"

/// Level-1 memory: whole slabs leased to one session, pinned until it frees them.
namespace kvd::core {

void Controller::State::on_region(const Command& command, const AllocateRegion& region) {
  if (region.bytes <= Bytes(0) ||
      region.bytes > Bytes(hbm.config().slab_bytes.value * std::int64_t{hbm.config().slabs})) {
    refuse(command, ErrorCode::kInvalidArgument,
           "a region of " + std::to_string(region.bytes.value) + " bytes: ask for 1 to " +
               std::to_string(hbm.config().slab_bytes.value * std::int64_t{hbm.config().slabs}) +
               ", the size of the HBM pool, or start kvd with a larger pool.hbm");
    return;
  }
  pending_regions.push_back({command.engine, command.reply_to, command.deadline, region.bytes});
  serve_regions();
}

bool Controller::State::grant_region(const PendingRegion& pending) {
  Session& session = sessions.at(pending.engine);
  const RegionId id(++last_region);
  auto slabs = hbm.allocate_region(id, session.info.domain, session.id, pending.bytes);
  if (!slabs.ok()) {
    // Slabs that no block uses any more can be had, once they are zeroed.
    const bool reclaimed = !hbm.reclaim_empty_slabs().empty();
    scrub_dirty_slabs();
    if (reclaimed || slabs.error().code == ErrorCode::kWouldBlock) return false;
    emit(Reply{pending.engine, pending.reply_to, std::move(slabs).error()});
    return true;
  }
  const auto count = static_cast<std::uint32_t>(slabs->size());
  const Bytes slab_bytes = hbm.config().slab_bytes;
  for (std::uint32_t i = 0; i < count; ++i) {
    hbm.set_mapped((*slabs)[i], session.id, true);
    emit(SendSlab{session.id, (*slabs)[i], id, i, count});
  }
  counters.region_bytes_granted += static_cast<std::uint64_t>((slab_bytes * count).value);
  session.regions.emplace(id, Region{id, std::move(*slabs)});
  emit(Reply{pending.engine, pending.reply_to, RegionReply{id, slab_bytes, count}});
  return true;
}

void Controller::State::serve_regions() {
  while (!pending_regions.empty() && grant_region(pending_regions.front())) {
    pending_regions.pop_front();
  }
}

void Controller::State::on_release_region(const Command& command, const ReleaseRegion& release) {
  Session& session = sessions.at(command.engine);
  const auto it = session.regions.find(release.region);
  if (it == session.regions.end()) {
    refuse(command, ErrorCode::kNotFound,
           "region " + std::to_string(release.region.value) + " is not this session's");
    return;
  }
  for (const SlabIndex slab : it->second.slabs) {
    if (!session.sent[slab.value]) hbm.set_mapped(slab, session.id, false);
  }
  hbm.release_region(release.region);
  session.regions.erase(it);
  scrub_dirty_slabs();
  reply(command, Done{});
  serve_everyone();
}

}  // namespace kvd::core
