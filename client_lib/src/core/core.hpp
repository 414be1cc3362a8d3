#pragma once

#include <string>

#include "client_lib/src/core/caches.hpp"
#include "client_lib/src/core/daemon_link.hpp"
#include "client_lib/src/core/regions.hpp"
#include "client_lib/src/core/requests.hpp"
#include "ipc/vocabulary/result.hpp"
#include "kvd_client/types.hpp"

namespace kvd::client {

/// The implementation of kvd_client::Client: the same calls with kvd's own Result, by what they are
/// about.
/// Owner:   thread-safe
/// Errors:  PeerGone in a forked child, before anything is touched there.
struct Core {
  /// `model`: as kvd_client::Options::model.
  Core(Introduction introduction, Nanoseconds attach_timeout, std::string model);
  /// Hands everything back in order. The last call.
  void close();

  [[nodiscard]] Result<wire::Welcome> welcome() const;
  /// The daemon's GPU by this process's count, or SlabRange::kNoDevice.
  [[nodiscard]] int device() const;
  Status ping(Nanoseconds timeout);
  Result<kvd_client::Stats> stats(Nanoseconds timeout);

  DaemonLink link;
  Regions regions;
  Requests requests;
  Caches caches;
};

}  // namespace kvd::client
