#include "kvd/core/ledger/spaces.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "kvd/core/ledger/fair_grants.hpp"
#include "kvd/core/ledger/serving_order.hpp"

namespace kvd::core {

namespace {

constexpr std::size_t kMostSpaces = 16;  ///< of a session
constexpr std::size_t kMostNeeds = 16;   ///< of a space
/// An engine that stopped asking wants nothing more. It keeps what it has.
constexpr Nanoseconds kWordGood = std::chrono::seconds(2);
/// A space that wanted something is likely to want it again within so long. Others that have more
/// time do not get it until then, because giving it back takes longer than computing a prompt. kvd
/// design.
constexpr Nanoseconds kWantedAgain = std::chrono::seconds(10);
/// Goals count as equal when one is at most this many times as long as the other.
constexpr std::int64_t kAlike = 8;

std::string named(RegionId space) { return "space " + std::to_string(space.value); }

/// What a space with `positions` positions takes.
Bytes bytes_of_positions(std::size_t positions) {
  return Bytes(static_cast<std::int64_t>(2 * sizeof(Space) + kMostNeeds * sizeof(Need) +
                                         positions * sizeof(Backing)));
}

std::int64_t held(const Space& space) {
  return std::count_if(space.at.begin(), space.at.end(),
                       [](const Backing& one) { return static_cast<bool>(one.region); });
}

/// Whether the region stands at these positions already: an engine says again what it has had no
/// answer to.
bool stands(const Region& region, const std::vector<std::uint32_t>& positions,
            const std::vector<Backing>& at) {
  return std::equal(positions.begin(), positions.end(), region.slabs.begin(), region.slabs.end(),
                    [&](std::uint32_t position, SlabIndex slab) {
                      return position < at.size() && at[position].region == region.id &&
                             at[position].slab == slab;
                    });
}

/// What an older client tells counts as if its requests had begun.
std::vector<Need> needs_of(const Demand& told) {
  if (!told.needs.empty()) return told.needs;
  if (told.age <= Nanoseconds(0)) return {};
  return {{told.wanted, told.least, told.age, Nanoseconds(0), 0, true}};
}

Nanoseconds goal_of(const Need& need, const Session& session, const Context& context) {
  if (need.ttft > Nanoseconds(0)) return need.ttft;
  const SloClasses& classes = context.tuning.slo;
  const auto of_class = class_of(classes, need.slo_class, session.info.slo_class);
  return of_class == classes.end() ? Slo{}.ttft : of_class->second.ttft;
}

/// The time until the oldest of them is due. `late`: a request that cannot be in time any more
/// counts as due later. No request counts as older than its session.
Nanoseconds slack_of(const Need& need, const Session& session, const Context& context, bool late) {
  const Nanoseconds goal = goal_of(need, session, context);
  const Nanoseconds age = std::min(need.age, context.now - session.life.attached);
  return ServingOrder::Due(context).after(goal, late && !need.begun && age > goal) - age;
}

/// Adds to `want` what the space's most urgent request needs and when it is due, and what all
/// requests due by each time would use. A late request has its part as before, but makes no other
/// request late.
void add_needs(const Session& session, const Space& space, Bytes slab, const Context& context,
               Want& want) {
  const std::int64_t most = std::ssize(space.at);
  std::vector<std::pair<Nanoseconds, Bytes>> used;
  for (const Need& need : needs_of(space.demand)) {
    used.emplace_back(slack_of(need, session, context, false), std::min(need.bytes, slab * most));
    const Nanoseconds slack = slack_of(need, session, context, true);
    if (want.slack && *want.slack <= slack) continue;
    want.slack = slack;
    want.least = std::min(pieces(need.least, slab), most);
  }
  std::sort(used.begin(), used.end());
  Bytes sum;
  for (const auto& [slack, bytes] : used) {
    want.used.push_back({slack, std::min(pieces(sum += bytes, slab), most)});
  }
}

/// Remembers what requests with the tightest goals use, until they use more, or have not used it
/// for a while.
void remember(const Session& session, const Context& context, Space& space) {
  const std::vector<Need> needs = needs_of(space.demand);
  Usual now{{}, Nanoseconds::max(), context.now};
  for (const Need& need : needs) now.goal = std::min(now.goal, goal_of(need, session, context));
  for (const Need& need : needs) {
    if (goal_of(need, session, context) / kAlike > now.goal) continue;
    now.bytes += std::min(need.bytes, space.demand.wanted);
  }
  const Usual& before = space.usual;
  const bool tighter = now.goal < before.goal / kAlike;
  const bool more = now.goal / kAlike <= before.goal && now.bytes >= before.bytes;
  const bool over = before.bytes == Bytes(0) || context.now - before.at > kWantedAgain;
  if (!needs.empty() && (tighter || more || over)) space.usual = now;
}

/// What an engine says of itself never counts for more than kvd knows: no request needs more than
/// the space has addresses for.
Want want_of(const Session& session, const Space& space, Bytes slab, const Context& context) {
  Want want;
  want.domain = session.info.domain;
  want.held = held(space);
  const Demand& told = space.demand;
  const std::int64_t most = std::ssize(space.at);
  want.kept = std::min(pieces(told.kept, slab), most);
  want.grain = std::clamp<std::int64_t>(pieces(told.grain, slab), 1, most);
  const Usual& usual = space.usual;
  if (usual.bytes > Bytes(0) && context.now - usual.at <= kWantedAgain) {
    want.soon = UsedBy{ServingOrder::Due(context).after(usual.goal, false),
                       std::min(pieces(usual.bytes, slab), most)};
  }
  if (context.now - space.told > kWordGood) return want;
  want.wanted = std::min(pieces(told.wanted, slab), most);
  add_needs(session, space, slab, context, want);
  return want;
}

}  // namespace

void Spaces::on_open(const Command& command, const OpenSpace& open) {
  Session& session = requests_.sessions().at(command.engine);
  const std::uint32_t most = store_.hbm.of(session.share().device).config().slabs;
  if (session.ranks) {
    return context_.refuse(command, ErrorCode::kUnsupported,
                           "the ranks of a group share their session, and a space belongs to one "
                           "process: open another session for it, outside the group");
  }
  if (open.slabs == 0 || open.slabs > most) {
    return context_.refuse(command, ErrorCode::kInvalidArgument,
                           "a space of " + std::to_string(open.slabs) + " slabs: ask for 1 to " +
                               std::to_string(most) +
                               ", which is the HBM pool, or start kvd with a larger pool.hbm");
  }
  if (session.leases.spaces.size() >= kMostSpaces) {
    return context_.refuse(command, ErrorCode::kQuotaExceeded,
                           "16 spaces of this session are open, the most there can be: free some");
  }
  if (const Status fits = requests_.may_keep(session.info.domain, bytes_of_positions(open.slabs));
      !fits.ok()) {
    return context_.refuse(command, fits.error().code, fits.error().message);
  }
  requests_.keep(session, bytes_of_positions(open.slabs));
  const RegionId id = next_id();
  session.leases.spaces[id].at.resize(open.slabs);
  context_.reply(command, ValueReply{id.value});
}

void Spaces::on_close(const Command& command, const CloseSpace& close) {
  Session& session = requests_.sessions().at(command.engine);
  const auto space = session.leases.spaces.find(close.space);
  if (space == session.leases.spaces.end()) {
    return context_.refuse(command, ErrorCode::kNotFound,
                           named(close.space) + " is not this session's");
  }
  if (held(space->second) > 0) {
    return context_.refuse(command, ErrorCode::kWouldBlock,
                           "regions stand behind " + named(close.space) + ": hand them back first");
  }
  requests_.keep(session, Bytes(0) - bytes_of_positions(space->second.at.size()));
  session.leases.spaces.erase(space);
  context_.reply(command, Done{});
}

void Spaces::on_place(const Command& command, const PlaceRegion& place) {
  Session& session = requests_.sessions().at(command.engine);
  const auto space = session.leases.spaces.find(place.space);
  const auto region = session.leases.regions.find(place.region);
  if (space == session.leases.spaces.end() || region == session.leases.regions.end()) {
    return context_.refuse(command, ErrorCode::kNotFound,
                           named(place.space) + " or region " + std::to_string(place.region.value) +
                               " is not this session's");
  }
  std::vector<Backing>& at = space->second.at;
  if (stands(region->second, place.positions, at)) {
    return context_.reply(command, ValueReply{place.positions.size()});
  }
  std::vector<std::uint32_t> sorted = place.positions;
  std::sort(sorted.begin(), sorted.end());
  const bool fits = sorted.size() == region->second.slabs.size() && sorted.back() < at.size() &&
                    std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end() &&
                    std::none_of(sorted.begin(), sorted.end(), [&](std::uint32_t position) {
                      return static_cast<bool>(at[position].region);
                    });
  const bool elsewhere = std::any_of(
      session.leases.spaces.begin(), session.leases.spaces.end(), [&](const auto& other) {
        return std::any_of(other.second.at.begin(), other.second.at.end(),
                           [&](const Backing& one) { return one.region == place.region; });
      });
  if (!fits || elsewhere) {
    return context_.refuse(command, ErrorCode::kInvalidArgument,
                           "the region stands somewhere already, or its slabs do not each get a "
                           "position of the space behind which nothing stands");
  }
  for (std::size_t i = 0; i < place.positions.size(); ++i) {
    at[place.positions[i]] = {place.region, region->second.slabs[i]};
  }
  context_.reply(command, ValueReply{place.positions.size()});
}

void Spaces::on_share(const Command& command, const ShareSpace& share,
                      const std::map<DomainId, Bytes>& awaited) {
  Session& session = requests_.sessions().at(command.engine);
  const auto space = session.leases.spaces.find(share.space);
  if (space == session.leases.spaces.end()) {
    return context_.refuse(command, ErrorCode::kNotFound,
                           named(share.space) + " is not this session's");
  }
  space->second.demand = share.demand;
  space->second.told = context_.now;
  remember(session, context_, space->second);
  const Bytes granted = slab_bytes(session) * grant(session, share.space, awaited);
  context_.reply(command, ValueReply{static_cast<std::uint64_t>(granted.value)});
}

// Each request that waits in a line of kvd's counts as one more want: its fair part is not lent
// out.
std::int64_t Spaces::grant(const Session& asker, RegionId space,
                           const std::map<DomainId, Bytes>& awaited) {
  const Share share = asker.share();
  const pool::TierPool& hbm = store_.hbm.of(share.device);
  const Bytes slab = slab_bytes(asker);
  // Cached blocks make way for a region of the domain.
  const std::int64_t cached = store_.cache.evictable(share.domain, Tier::kHbm, share.device) / slab;
  std::int64_t budget = hbm.region_room(share.domain) + cached;
  std::vector<Want> wants;
  std::map<DomainId, std::int64_t> limits;  // the most that spaces have of a domain's HBM
  std::size_t own = 0;
  for (const auto& [engine, session] : requests_.sessions()) {
    if (session.share().device != share.device) continue;
    for (const auto& [id, one] : session.leases.spaces) {
      if (engine == asker.id && id == space) own = wants.size();
      wants.push_back(want_of(session, one, slab, context_));
      budget += wants.back().held;
      const auto [limit, is_new] = limits.try_emplace(session.info.domain);
      if (is_new) limit->second = hbm.most_slabs(limit->first) - hbm.used(limit->first) / slab;
      limit->second += wants.back().held;
    }
  }
  limits[share.domain] += cached;
  for (const auto& [domain, bytes] : awaited) {
    wants.push_back({.domain = domain, .wanted = pieces(bytes, slab)});
  }
  const std::int64_t granted = fair_grants(wants, budget, limits)[own];
  return std::min<std::int64_t>(granted, std::ssize(asker.leases.spaces.at(space).at));
}

Bytes lacks(const Space& space, Bytes slab, TimePoint now) {
  if (now - space.told > kWordGood) return Bytes(0);
  const std::int64_t wanted = std::min(pieces(space.demand.wanted, slab), std::ssize(space.at));
  return slab * std::max<std::int64_t>(0, wanted - held(space));
}

void Spaces::forget(Session& session, RegionId region) {
  for (auto& [id, space] : session.leases.spaces) {
    for (Backing& one : space.at) {
      if (one.region == region) one = {};
    }
  }
}

std::optional<std::uint32_t> Spaces::slabs_of(const Session& session, RegionId id) {
  const auto region = session.leases.regions.find(id);
  if (region != session.leases.regions.end()) {
    return static_cast<std::uint32_t>(region->second.slabs.size());
  }
  const auto space = session.leases.spaces.find(id);
  if (space == session.leases.spaces.end()) return std::nullopt;
  return static_cast<std::uint32_t>(space->second.at.size());
}

}  // namespace kvd::core
