#pragma once

#include <string>
#include <utility>

#include "client_lib/src/core/block_names.hpp"
#include "client_lib/src/core/cache_book.hpp"
#include "client_lib/src/core/daemon_link.hpp"
#include "client_lib/src/core/lookups_ahead.hpp"
#include "client_lib/src/core/regions.hpp"
#include "kvd_client/client.hpp"

namespace kvd_client {

/// What the calls of a Client and of its Caches work with.
/// Owner:   thread-safe, by the link's gate; waits and polling run beside other calls
/// Errors:  PeerGone in a forked child, before anything is touched there.
class __attribute__((visibility("hidden"))) Client::Impl {
 public:
  Impl(kvd::client::Introduction introduction, const Options& options)
      : link(std::move(introduction), options.attach_timeout), model(options.model) {}

  kvd::client::DaemonLink link;
  kvd::client::Regions regions{link};
  const std::string model;        ///< as Options::model
  kvd::client::BlockNames names;  ///< guarded by the link's gate
  kvd::client::CacheBook book;
  kvd::client::LookupsAhead ahead;  ///< guarded by the link's gate
};

}  // namespace kvd_client
