#include "kvd/daemon/config/domains.hpp"

#include <algorithm>

#include "ipc/digest/sha256.hpp"

namespace kvd::daemon {
namespace {

template <class T>
bool contains(const std::vector<T>& values, T value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

bool takes(const DomainConfig& domain, uid_t uid, gid_t gid) {
  const bool everyone = domain.uids.empty() && domain.gids.empty();
  return everyone || contains(domain.uids, uid) || contains(domain.gids, gid);
}

auto place_of(const std::vector<DomainConfig>& configured, uid_t uid, gid_t gid) {
  return std::find_if(configured.begin(), configured.end(),
                      [&](const DomainConfig& d) { return takes(d, uid, gid); });
}

DomainId number(std::size_t place) { return DomainId(static_cast<std::uint32_t>(place) + 1); }

}  // namespace

Result<Domains::Entry> Domains::enter(const std::vector<DomainConfig>& configured, uid_t uid,
                                      gid_t gid, const InUse& in_use) {
  const auto found = place_of(configured, uid, gid);
  if (found == configured.end()) {
    return make_error(ErrorCode::kPermissionDenied,
                      "uid " + std::to_string(uid) +
                          " belongs to no domain: add it to a [[domain]] of kvd's configuration");
  }
  const auto place = static_cast<std::size_t>(found - configured.begin());
  if (!found->makes_domains()) {
    return entered({number(place), found->name, found->slo_class}, uid, gid);
  }
  const Who who{found->per_group, found->per_group ? gid : uid};
  if (!users_.contains(who) && users_.size() >= kMaxUserDomains) {
    const auto idle = [&](const auto& a) { return !in_use(a.second.id); };
    const auto first = [&](const auto& a, const auto& b) {
      return std::pair(!idle(a), a.second.id) < std::pair(!idle(b), b.second.id);
    };
    const auto oldest = std::min_element(users_.begin(), users_.end(), first);
    if (!idle(*oldest)) {
      return make_error(ErrorCode::kQuotaExceeded,
                        std::to_string(kMaxUserDomains) +
                            " users have engines, the most there can be with domains of their own: "
                            "list users who trust each other in one [[domain]]");
    }
    origins_.erase(oldest->second.id);
    users_.erase(oldest);
  }
  User& user = users_[who];
  if (!user.id) user.id = DomainId(++last_);
  user.place = place;
  const std::string name = (who.group ? "gid-" : "uid-") + std::to_string(who.number);
  return entered({user.id, name, found->slo_class}, uid, gid);
}

bool Domains::by_group(const std::vector<DomainConfig>& configured, uid_t uid, gid_t gid) {
  const auto found = place_of(configured, uid, gid);
  return found != configured.end() && found->per_group;
}

Domains::Entry Domains::entered(Entry entry, uid_t uid, gid_t gid) {
  if (origins_.contains(entry.id)) return entry;
  const auto* name = reinterpret_cast<const std::uint8_t*>(entry.name.data());
  origins_[entry.id] = {digest::Sha256()({name, entry.name.size()}), uid, gid};
  return entry;
}

std::optional<Domains::Origin> Domains::origin(DomainId domain) const {
  const auto found = origins_.find(domain);
  return found == origins_.end() ? std::nullopt : std::optional(found->second);
}

core::Requota Domains::quotas(const std::vector<DomainConfig>& configured) const {
  core::Requota quotas;
  const auto add = [&](DomainId id, const DomainConfig& domain) {
    quotas.hbm[id] = {domain.hbm_guarantee, domain.hbm_maximum};
    quotas.dram[id] = {domain.dram_guarantee, domain.dram_maximum};
  };
  for (std::size_t place = 0; place < configured.size(); ++place) {
    add(number(place), configured[place]);
  }
  for (const auto& [who, user] : users_) add(user.id, configured[user.place]);
  return quotas;
}

std::vector<DomainId> Domains::of_place(std::size_t place) const {
  std::vector<DomainId> domains{number(place)};
  for (const auto& [who, user] : users_) {
    if (user.place == place) domains.push_back(user.id);
  }
  return domains;
}

std::size_t Domains::count(const std::vector<DomainConfig>& configured, const InUse& in_use) const {
  const auto named = std::count_if(configured.begin(), configured.end(),
                                   [](const DomainConfig& d) { return !d.makes_domains(); });
  const auto users = std::count_if(users_.begin(), users_.end(),
                                   [&](const auto& entry) { return in_use(entry.second.id); });
  const bool more =
      named < std::ssize(configured) && users < static_cast<std::ptrdiff_t>(kMaxUserDomains);
  return static_cast<std::size_t>(named + users + (more ? 1 : 0));
}

}  // namespace kvd::daemon
