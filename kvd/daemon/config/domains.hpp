#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ipc/vocabulary/digest.hpp"
#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/result.hpp"
#include "kvd/core/door/events.hpp"
#include "kvd/daemon/config/config.hpp"

namespace kvd::daemon {

/// The most users that have a domain of their own at a time.
constexpr std::size_t kMaxUserDomains = 64;

/// Which domain a peer belongs to: one of the configuration, whose number is its place there from
/// 1; or its user's own where the configuration says `per_user`; or its group's where it says
/// `per_group`. Domains of users and groups are made when the first engine comes. The number of a
/// forgotten one is not used again. Source: kvd/DESIGN.md "Domains and quotas". Owner: control
/// thread.
class Domains {
 public:
  struct Entry {
    DomainId id;
    std::string name;
    std::string slo_class;
  };
  /// Whether the domain has engines, including ended ones whose process still lives.
  using InUse = std::function<bool(DomainId)>;

  /// `configured` keeps its length for the life of this object; what is in it may change.
  explicit Domains(const std::vector<DomainConfig>& configured)
      : last_(static_cast<std::uint32_t>(configured.size())) {}

  /// Errors: PermissionDenied for a user of no domain; QuotaExceeded where kMaxUserDomains users
  ///         have engines. A user without engines makes way, the one that came first.
  [[nodiscard]] Result<Entry> enter(const std::vector<DomainConfig>& configured, uid_t uid,
                                    gid_t gid, const InUse& in_use);
  /// Whether the group that a peer runs with stands for a user.
  [[nodiscard]] static bool by_group(const std::vector<DomainConfig>& configured, uid_t uid,
                                     gid_t gid);
  /// Identifies a domain that was entered: its first user, and the SHA-256 of its name, which is
  /// the same in every kvd, whatever numbers domains have there.
  struct Origin {
    Digest name;
    uid_t uid = 0;
    gid_t gid = 0;
  };
  /// None: no engine of it was there, or it was forgotten.
  [[nodiscard]] std::optional<Origin> origin(DomainId domain) const;
  /// Quotas of all domains and of every place in the configuration, so that what does not fit shows
  /// at once.
  [[nodiscard]] core::Requota quotas(const std::vector<DomainConfig>& configured) const;
  /// The domains that come of the place in the configuration.
  [[nodiscard]] std::vector<DomainId> of_place(std::size_t place) const;
  /// How many domains share the seats for engines. Where users have domains of their own, one that
  /// has yet to come counts, too.
  [[nodiscard]] std::size_t count(const std::vector<DomainConfig>& configured,
                                  const InUse& in_use) const;

 private:
  /// A user, or a group that stands for one.
  struct Who {
    bool group = false;
    std::uint32_t number = 0;
    friend auto operator<=>(const Who&, const Who&) = default;
  };
  struct User {
    DomainId id;
    std::size_t place = 0;  ///< of the [[domain]] that takes the user
  };

  Entry entered(Entry entry, uid_t uid, gid_t gid);

  std::map<Who, User> users_;
  std::map<DomainId, Origin> origins_;
  std::uint32_t last_;
};

}  // namespace kvd::daemon
