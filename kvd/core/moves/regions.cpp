#include "kvd/core/moves/regions.hpp"

#include <algorithm>
#include <span>
#include <tuple>
#include <utility>

#include "ipc/vocabulary/human.hpp"

namespace kvd::core {

void Regions::on_allocate(const Command& command, const AllocateRegion& region) {
  const Session& session = requests_.sessions().at(command.engine);
  if (drains_.drains(session)) {
    context_.refuse(command, ErrorCode::kDraining, Drains::kRefusal);
    return;
  }
  const Share share = session.share();
  const pool::TierPool::Config& pool = store_.hbm.of(share.device).config();
  const Bytes whole = pool.slab_bytes * std::int64_t{pool.slabs};
  if (region.bytes <= Bytes(0) || region.bytes > whole) {
    context_.refuse(command, ErrorCode::kInvalidArgument,
                    "a region of " + std::to_string(region.bytes.value) + " bytes: ask for 1 to " +
                        std::to_string(whole.value) +
                        ", the size of the HBM pool, or start kvd with a larger pool.hbm");
    return;
  }
  if (session.ranks) {
    context_.refuse(
        command, ErrorCode::kUnsupported,
        "the ranks of a group share their session, and a region belongs to one process: open "
        "another session for it, outside the group");
    return;
  }
  const Bytes most = needs_.hbm_limit(share);
  if (region.bytes > most) {
    context_.refuse(
        command, ErrorCode::kQuotaExceeded,
        "a region of " + std::to_string(region.bytes.value) + " bytes: the domain can have " +
            std::to_string(most.value) +
            " by its maximum and others' guarantees: raise the one, lower the others, or ask "
            "for less");
    return;
  }
  // Memory that a previous daemon lent is still memory of the machine: an engine that keeps it gets
  // that much less.
  Bytes orphaned;
  Bytes lent;
  for (const auto& [engine, other] : requests_.sessions()) {
    if (other.share() != share) continue;
    orphaned += other.info.orphaned;
    lent += region_bytes(other);
  }
  if (orphaned > Bytes(0) && orphaned + lent + region.bytes > most) {
    context_.refuse(
        command, ErrorCode::kQuotaExceeded,
        "engines of the domain still map " + std::to_string(orphaned.value) +
            " bytes of regions of an earlier kvd, which count as theirs: free those first");
    return;
  }
  constexpr std::ptrdiff_t kMostPending = 8;
  const auto waiting = std::count_if(pending_.begin(), pending_.end(),
                                     [&](const auto& p) { return p.engine == command.engine; });
  if (waiting >= kMostPending) {
    context_.refuse(command, ErrorCode::kQuotaExceeded,
                    "8 regions of this session are waited for already: wait for their replies");
    return;
  }
  pending_.push_back({command.engine, command.reply_to, command.deadline, region.bytes});
  serve();
}

bool Regions::on_release(const Command& command, const ReleaseRegion& release) {
  Session& session = requests_.sessions().at(command.engine);
  const auto it = session.leases.regions.find(release.region);
  if (it == session.leases.regions.end()) {
    context_.refuse(command, ErrorCode::kNotFound,
                    "region " + std::to_string(release.region.value) + " is not this session's");
    return false;
  }
  copies_of_regions_.unmapped(it->second, session.id);
  Spaces::forget(session, release.region);
  session.leases.regions.erase(it);
  // Requests that wait for the memory, on whatever devices, get their time.
  requests_.progressed(EngineId(), session.info.domain);
  context_.reply(command, Done{});
  return true;
}

// True when it was answered.
bool Regions::grant(const PendingRegion& pending) {
  Session& session = requests_.sessions().at(pending.engine);
  const RegionId id = spaces_.next_id();
  auto slabs = store_.tiers.lease(id, session.taker(), pending.bytes);
  // Cached blocks go first, as few of them as leave whole slabs empty.
  while (!slabs.ok() &&
         store_.cache.make_way(Tier::kHbm, session.taker(), pending.bytes, slabs.error().code)) {
    slabs = store_.tiers.lease(id, session.taker(), pending.bytes);
  }
  if (!slabs.ok()) {
    const ErrorCode code = slabs.error().code;
    // At its own maximum a domain's requests make way for its region as they do in a full tier.
    const bool full = code == ErrorCode::kOutOfMemory || code == ErrorCode::kQuotaExceeded;
    const bool waits =
        code == ErrorCode::kWouldBlock || (full && make_way(pending)) || requests_.is_behind();
    store_.tiers.scrub_slabs();
    if (!waits) session.leases.refused = RefusedRegion{context_.now, pending.bytes};
    if (!waits) context_.emit(Reply{pending.engine, pending.reply_to, std::move(slabs).error()});
    return !waits;
  }
  const auto count = static_cast<std::uint32_t>(slabs->size());
  const Bytes slab_bytes = store_.hbm.of(session.share().device).config().slab_bytes;
  context_.counters.region_bytes_granted += static_cast<std::uint64_t>((slab_bytes * count).value);
  session.leases.regions.emplace(id, Region{id, std::move(*slabs)});
  context_.emit(Reply{pending.engine, pending.reply_to, RegionReply{id, slab_bytes, count}});
  return true;
}

// Blocks of requests can go to DRAM and a region cannot, so requests make way. False: even all
// slabs of the domain's requests would not do.
bool Regions::make_way(const PendingRegion& pending) {
  const Share share = share_of(pending);
  const pool::TierPool& hbm = store_.hbm.of(share.device);
  const std::int64_t missing =
      pieces(pending.bytes, hbm.config().slab_bytes) - hbm.region_room(share.domain);
  const std::vector<SlabIndex> slabs = emptiest_slabs(share);
  if (missing <= 0 || std::ssize(slabs) < missing) return false;
  for (const SlabIndex slab : std::span(slabs).first(static_cast<std::size_t>(missing))) {
    store_.tiers.hbm().with(slab).retire(slab);
  }
  context_.note(Note::Level::kInfo, pending.engine,
                std::to_string(missing) + " slabs are being emptied for a region of " +
                    human_size(pending.bytes));
  supply_.begin_retiring(share);
  yield(share, EngineId(0));
  return true;
}

// Slabs with blocks of a silent engine come last: they are emptied only when it steps again.
std::vector<SlabIndex> Regions::emptiest_slabs(Share share) {
  std::set<SlabIndex> stuck;
  requests_.each_inside_on(share, [&](Request& r) {
    if (requests_.session_of(r).life.responsive) return;
    memory_.each_hbm_slot(r, [&](SlotId slot) { stuck.insert(slot.slab()); });
  });
  std::vector<pool::SlabView> views = store_.hbm.of(share.device).slabs();
  std::erase_if(views, [&](const pool::SlabView& view) {
    return view.use != pool::SlabUse::kClass || view.domain != share.domain || view.retiring;
  });
  const auto rank = [&](const pool::SlabView& view) {
    return std::tuple(stuck.contains(view.index), view.used, view.index);
  };
  std::sort(views.begin(), views.end(),
            [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
  std::vector<SlabIndex> slabs;
  slabs.reserve(views.size());
  for (const pool::SlabView& view : views) slabs.push_back(view.index);
  return slabs;
}

void Regions::share_out() {
  shares_.begin();
  for (std::uint32_t device = 0; device < store_.hbm.count(); ++device) {
    quotas_changed_ |= shares_.share_out(DeviceId(device), awaited(DeviceId(device)));
  }
  quotas_changed_ |= shares_.share_out_dram();
}

// Looks at all slabs, so it runs at a tick, and where quotas have just changed.
void Regions::shrink() {
  if (!quotas_changed_) return;
  std::set<Share> shrinking;
  for (const pool::TierPool& hbm : store_.hbm) {
    const DeviceId device = store_.hbm.device_of(hbm.config().first);
    for (const auto& [domain, excess] : pool::excess(hbm)) {
      const Share share{domain, device};
      shrinking.insert(share);
      supply_.begin_retiring(share);
      give_back(store_.tiers, Tier::kHbm, domain, excess, device);
      yield(share, EngineId(0));
    }
  }
  shrink_dram();
  quotas_changed_ = !shrinking.empty() || !in_dram_.empty();
  supply_.set_shrinking(std::move(shrinking));
}

// A request that is parked there comes back or ends: nothing else takes it from there.
void Regions::shrink_dram() {
  const auto excess_of = [&](DomainId domain) {
    const pool::HeldSlabs excess = pool::excess(store_.dram);
    const auto found = excess.find(domain);
    return found == excess.end() ? 0 : found->second;
  };
  std::set<DomainId> left = std::exchange(in_dram_, {});
  for (const auto& [domain, excess] : pool::excess(store_.dram)) left.insert(domain);
  for (const DomainId domain : left) {
    std::uint32_t excess = excess_of(domain);
    give_back(store_.tiers, Tier::kDram, domain, excess);
    // Gives up as little of what is cached or copied ahead as leaves enough slabs empty.
    const Bytes slab = store_.dram.config().slab_bytes;
    while ((excess = excess_of(domain)) > 0 &&
           (store_.cache.make_room(domain, Tier::kDram, slab) > Bytes(0) ||
            copies_.drop(domain, slab) > Bytes(0))) {
      give_back(store_.tiers, Tier::kDram, domain, excess);
    }
    if (excess > 0) in_dram_.insert(domain);
  }
}

void Regions::serve() {
  std::set<Share> waiting;
  std::erase_if(pending_, [&](const PendingRegion& pending) {
    const Share share = share_of(pending);
    if (waiting.contains(share)) return false;  // first come, first served
    const bool answered = grant(pending);
    if (!answered) waiting.insert(share);
    return answered;
  });
  waiting.insert(supply_.shrinking().begin(), supply_.shrinking().end());
  end_yielding(waiting);
}

void Regions::end_yielding(const std::set<Share>& still_waiting) {
  for (const Share share : std::set(supply_.retiring())) {
    if (still_waiting.contains(share)) continue;
    requests_.each_inside_on(share, [&](Request& r) {
      if (!r.promised || !supply_.in_retiring_slab(r)) return;
      r.promised.reset();
      ++context_.counters.promises_expired;
    });
    for (const pool::SlabView& slab : store_.hbm.of(share.device).slabs()) {
      if (slab.retiring && slab.domain == share.domain)
        store_.tiers.hbm().with(slab.index).unretire(slab.index);
    }
    supply_.end_retiring(share);
  }
}

void Regions::yield(Share share, EngineId caller) {
  if (!supply_.retires(share)) return;
  (void)store_.cache.make_room(share.domain, Tier::kHbm, Bytes(INT64_MAX), share.device);
  requests_.each_inside_on(share, [&](Request& r) {
    const bool may_leave = r.decodes() && (!r.fresh || r.paused()) && !r.leaving && !r.promised &&
                           requests_.session_of(r).life.responsive;
    if (!may_leave || !supply_.in_retiring_slab(r)) return;
    // Without room in DRAM the request should go on: its end frees the slab, too.
    if (copies_.spare(share.domain) >= memory_.hbm_bytes(r))
      promises_.preempt(r, caller, Promise::kForBytes);
  });
}

void Regions::drop(EngineId engine) {
  std::erase_if(pending_, [&](const PendingRegion& pending) { return pending.engine == engine; });
}

// Says why the slabs that retire for it still hold blocks.
std::string Regions::obstacle(const PendingRegion& pending) {
  const Share share = share_of(pending);
  std::string text;
  requests_.each_inside_on(share, [&](Request& r) {
    if (!text.empty() || !supply_.in_retiring_slab(r)) return;
    const Session& owner = requests_.session_of(r);
    if (r.promised || !owner.life.responsive) {
      text = "engine '" + owner.info.name + "' has not stepped to let its requests be rotated out";
    } else if (r.runs() && copies_.spare(share.domain) < memory_.hbm_bytes(r)) {
      text = "DRAM has no room for the requests that would make way: enlarge pool.dram";
    } else {
      text = "requests of engine '" + owner.info.name + "' were still leaving";
    }
  });
  return text;
}

void Regions::expire() {
  share_out();
  shrink();
  std::erase_if(pending_, [&](const PendingRegion& pending) {
    if (context_.now < pending.deadline) return false;
    const Share share = share_of(pending);
    const std::string silent =
        supply_.retires(share) ? supply_.silent_holder(share) : std::string();
    const std::string why = silent.empty() ? obstacle(pending) : silent;
    requests_.sessions().at(pending.engine).leases.refused =
        RefusedRegion{context_.now, pending.bytes};
    context_.emit(
        Reply{pending.engine, pending.reply_to,
              make_error(silent.empty() ? ErrorCode::kDeadlineExceeded : ErrorCode::kWouldBlock,
                         "no " + std::to_string(pending.bytes.value) +
                             " bytes of whole slabs became free in time" +
                             (why.empty() ? "" : " (" + why + ")") +
                             ": free regions, enlarge pool.hbm, or allow more time")});
    return true;
  });
  serve();
}

std::map<DomainId, Bytes> Regions::awaited(DeviceId device) const {
  std::map<DomainId, Bytes> sums;
  for (const PendingRegion& pending : pending_) {
    const Share share = share_of(pending);
    if (share.device == device) sums[share.domain] += pending.bytes;
  }
  return sums;
}

Bytes Regions::region_bytes(const Session& session) const {
  std::size_t count = 0;
  for (const auto& [id, region] : session.leases.regions) count += region.slabs.size();
  return store_.hbm.of(session.share().device).config().slab_bytes *
         static_cast<std::int64_t>(count);
}

}  // namespace kvd::core
