#include <algorithm>
#include <tuple>

#include "kvd/core/state.hpp"

/// Level-1 memory: whole slabs leased to one session, pinned until it frees them. Where blocks of
/// the domain's requests fill HBM, the emptiest slabs retire and their requests are rotated out;
/// the command waits for that until its deadline.
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
  if (sessions.at(command.engine).ranks) {
    refuse(command, ErrorCode::kUnsupported,
           "the ranks of a group share their session, and a region belongs to one process: open "
           "another session for it, outside the group");
    return;
  }
  const DomainId domain = sessions.at(command.engine).info.domain;
  const Bytes most = hbm_limit(domain);
  if (region.bytes > most) {
    refuse(command, ErrorCode::kQuotaExceeded,
           "a region of " + std::to_string(region.bytes.value) + " bytes: the domain can have " +
               std::to_string(most.value) +
               " by its maximum and others' guarantees: raise the one, lower the others, or ask "
               "for less");
    return;
  }
  // What a daemon before lent is memory of the machine still: who keeps it gets so much less.
  Bytes orphaned;
  Bytes lent;
  for (const auto& [engine, session] : sessions) {
    if (session.info.domain != domain) continue;
    orphaned += session.info.orphaned;
    lent += region_bytes(session);
  }
  if (orphaned > Bytes(0) && orphaned + lent + region.bytes > most) {
    refuse(command, ErrorCode::kQuotaExceeded,
           "engines of the domain still map " + std::to_string(orphaned.value) +
               " bytes of regions of an earlier kvd, which count as theirs: free those first");
    return;
  }
  constexpr std::ptrdiff_t kMostPending = 8;
  const auto waiting = std::count_if(pending_regions.begin(), pending_regions.end(),
                                     [&](const auto& p) { return p.engine == command.engine; });
  if (waiting >= kMostPending) {
    refuse(command, ErrorCode::kQuotaExceeded,
           "8 regions of this session are waited for already: wait for their replies");
    return;
  }
  pending_regions.push_back({command.engine, command.reply_to, command.deadline, region.bytes});
  serve_regions();
}

// True when it was answered.
bool Controller::State::grant_region(const PendingRegion& pending) {
  Session& session = sessions.at(pending.engine);
  const RegionId id(++last.region);
  const DomainId domain = session.info.domain;
  auto slabs = tiers.lease(id, domain, session.id, pending.bytes);
  if (!slabs.ok()) {
    const ErrorCode code = slabs.error().code;
    // At its own maximum a domain's requests make way for its region as they do in a full tier.
    const bool full = code == ErrorCode::kOutOfMemory || code == ErrorCode::kQuotaExceeded;
    const bool waits = code == ErrorCode::kWouldBlock || (full && make_way(pending));
    tiers.scrub_slabs();
    if (!waits) session.refused = RefusedRegion{now, pending.bytes};
    if (!waits) emit(Reply{pending.engine, pending.reply_to, std::move(slabs).error()});
    return !waits;
  }
  const auto count = static_cast<std::uint32_t>(slabs->size());
  const Bytes slab_bytes = hbm.config().slab_bytes;
  counters.region_bytes_granted += static_cast<std::uint64_t>((slab_bytes * count).value);
  session.regions.emplace(id, Region{id, std::move(*slabs)});
  emit(Reply{pending.engine, pending.reply_to, RegionReply{id, slab_bytes, count}});
  return true;
}

// Blocks of requests can go to DRAM, a region cannot: so they make way. False where even all slabs
// of the domain's requests would not do.
bool Controller::State::make_way(const PendingRegion& pending) {
  const DomainId domain = sessions.at(pending.engine).info.domain;
  const std::uint32_t missing = hbm.region_shortage(domain, pending.bytes);
  const std::vector<SlabIndex> slabs = emptiest_slabs(domain);
  if (missing == 0 || slabs.size() < missing) return false;
  for (std::uint32_t i = 0; i < missing; ++i) tiers.retire(slabs[i]);
  note(Note::Level::kInfo, pending.engine,
       std::to_string(missing) + " slabs are being emptied for a region of " +
           std::to_string(pending.bytes.value) + " bytes");
  yielding.insert(domain);
  yield_to_regions(domain, EngineId(0));
  return true;
}

// What a silent engine has blocks in comes last: they leave only when it steps again.
std::vector<SlabIndex> Controller::State::emptiest_slabs(DomainId domain) {
  std::set<SlabIndex> stuck;
  each_inside_in(domain, [&](Request& r) {
    if (session_of(r).responsive) return;
    each_hbm_slot(r, [&](SlotId slot) { stuck.insert(slot.slab()); });
  });
  std::vector<pool::SlabView> views = hbm.slabs();
  std::erase_if(views, [&](const pool::SlabView& view) {
    return view.use != pool::SlabUse::kClass || view.domain != domain || view.retiring;
  });
  const auto rank = [&](const pool::SlabView& view) {
    return std::tuple(stuck.contains(view.index), view.used, view.index);
  };
  std::sort(views.begin(), views.end(),
            [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
  std::vector<SlabIndex> slabs;
  for (const pool::SlabView& view : views) slabs.push_back(view.index);
  return slabs;
}

void Controller::State::serve_regions() {
  std::set<DomainId> waiting;
  std::erase_if(pending_regions, [&](const PendingRegion& pending) {
    const DomainId domain = sessions.at(pending.engine).info.domain;
    if (waiting.contains(domain)) return false;  // first come, first served
    const bool answered = grant_region(pending);
    if (!answered) waiting.insert(domain);
    return answered;
  });
  end_yielding(waiting);
}

void Controller::State::end_yielding(const std::set<DomainId>& still_waiting) {
  std::erase_if(yielding, [&](DomainId domain) {
    if (still_waiting.contains(domain)) return false;
    each_inside_in(domain, [&](Request& r) {
      if (!r.promised || !in_retiring_slab(r)) return;
      r.promised = false;
      ++counters.promises_expired;
    });
    for (const pool::SlabView& slab : hbm.slabs()) {
      if (slab.retiring && slab.domain == domain) tiers.unretire(slab.index);
    }
    return true;
  });
}

void Controller::State::yield_to_regions(DomainId domain, EngineId caller) {
  if (!yielding.contains(domain)) return;
  each_inside_in(domain, [&](Request& r) {
    const bool may_leave = r.state == RequestState::kRunning && (!r.fresh || r.paused) &&
                           !r.leaving && !r.promised && session_of(r).responsive;
    if (!may_leave || !in_retiring_slab(r)) return;
    // Without room in DRAM it had better go on: its end frees the slab, too.
    if (spare_dram(domain) >= hbm_bytes(r)) preempt(r, caller, Promise::kForBytes);
  });
}

bool Controller::State::in_retiring_slab(const Request& request) const {
  return kept(request) > Bytes(0);
}

void Controller::State::drop_regions(EngineId engine) {
  std::erase_if(pending_regions,
                [&](const PendingRegion& pending) { return pending.engine == engine; });
}

// Why the slabs that retire for it still hold blocks.
std::string Controller::State::obstacle(const PendingRegion& pending) {
  const DomainId domain = sessions.at(pending.engine).info.domain;
  std::string text;
  each_inside_in(domain, [&](Request& r) {
    if (!text.empty() || !in_retiring_slab(r)) return;
    const Session& owner = session_of(r);
    if (r.promised || !owner.responsive) {
      text = "engine '" + owner.info.name + "' has not stepped to let its requests be rotated out";
    } else if (r.runs() && spare_dram(domain) < hbm_bytes(r)) {
      text = "DRAM has no room for the requests that would make way: enlarge pool.dram";
    } else {
      text = "requests of engine '" + owner.info.name + "' were still leaving";
    }
  });
  return text;
}

void Controller::State::expire_regions() {
  std::erase_if(pending_regions, [&](const PendingRegion& pending) {
    if (now < pending.deadline) return false;
    const DomainId domain = sessions.at(pending.engine).info.domain;
    const std::string silent = yielding.contains(domain) ? silent_holder(domain) : std::string();
    const std::string why = silent.empty() ? obstacle(pending) : silent;
    sessions.at(pending.engine).refused = RefusedRegion{now, pending.bytes};
    emit(Reply{pending.engine, pending.reply_to,
               make_error(silent.empty() ? ErrorCode::kDeadlineExceeded : ErrorCode::kWouldBlock,
                          "no " + std::to_string(pending.bytes.value) +
                              " bytes of whole slabs became free in time" +
                              (why.empty() ? "" : " (" + why + ")") +
                              ": free regions, enlarge pool.hbm, or allow more time")});
    return true;
  });
  serve_regions();
}

void Controller::State::on_release_region(const Command& command, const ReleaseRegion& release) {
  Session& session = sessions.at(command.engine);
  const auto it = session.regions.find(release.region);
  if (it == session.regions.end()) {
    refuse(command, ErrorCode::kNotFound,
           "region " + std::to_string(release.region.value) + " is not this session's");
    return;
  }
  tiers.end_lease(release.region, session.id, it->second.slabs);
  session.regions.erase(it);
  reply(command, Done{});
  serve_everyone();
}

Bytes Controller::State::region_bytes(const Session& session) const {
  std::size_t count = 0;
  for (const auto& [id, region] : session.regions) count += region.slabs.size();
  return hbm.config().slab_bytes * static_cast<std::int64_t>(count);
}

}  // namespace kvd::core
