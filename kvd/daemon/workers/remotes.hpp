#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "kvd/core/door/effects.hpp"
#include "kvd/core/door/status.hpp"
#include "kvd/daemon/base/event_log.hpp"
#include "kvd/daemon/base/poller.hpp"
#include "kvd/daemon/config/config.hpp"
#include "kvd/daemon/machine/disk_names.hpp"
#include "kvd/daemon/sessions/event_feed.hpp"
#include "kvd/mover/slab_store.hpp"
#include "kvd/tiers/remote/remote_tier.hpp"

namespace kvd::daemon {

/// What the files of remote.* say.
struct RemoteSecrets {
  DiskNames names;       ///< names of blocks there; none: there is no remote store
  std::string password;  ///< empty: none
};
/// Errors: PermissionDenied where others may read a file; InvalidArgument for a secret that is too
/// short; NotFound without the file.
[[nodiscard]] Result<RemoteSecrets> read_remote_secrets(const Config& config);

/// Blocks in Redis or Valkey servers: orders of the Controller to a remote::RemoteTier, and its
/// answers back. Source: kvd/DESIGN.md "Blocks on other machines".
/// Owner:  control thread. What it is given must outlive it.
/// Errors: none. What fails is told to the Controller, and a server that goes or comes to the log.
class Remotes {
 public:
  struct Uses {
    const mover::SlabStore& slabs;
    EventFeed& events;
    EventLog& log;
    Poller& poller;
  };
  /// Null without remote.servers. Errors: those of RemoteTier::open and of the poller.
  static Result<std::unique_ptr<remote::RemoteTier>> open(const RemoteSettings& settings,
                                                          const std::string& password,
                                                          Poller& poller);
  Remotes(const Uses& uses, std::unique_ptr<remote::RemoteTier> tier);
  /// From then on no memory is touched.
  ~Remotes();
  Remotes(const Remotes&) = delete;
  Remotes& operator=(const Remotes&) = delete;

  void find(const core::FindRemote& order);
  void read(const core::ReadRemote& order);
  void write(const core::WriteRemote& order);
  /// The tier has something to say.
  void take_finished();
  void describe(std::vector<core::RemoteServer>& servers) const;

 private:
  void tell(const remote::Change& change);

  const Uses uses_;
  std::unique_ptr<remote::RemoteTier> tier_;
  std::set<Ticket> finds_;  ///< under way
};

}  // namespace kvd::daemon
