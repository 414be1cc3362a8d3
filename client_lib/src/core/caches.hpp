#pragma once

#include <cstdint>
#include <span>

#include "client_lib/src/core/cache_book.hpp"
#include "client_lib/src/core/daemon_link.hpp"
#include "client_lib/src/core/lookups_ahead.hpp"
#include "ipc/wire/messages.hpp"
#include "kvd_client/types.hpp"

namespace kvd::client {

/// The calls of level 2: caches of engines that place their blocks themselves.
/// Owner:   thread-safe, by the link's gate; polling waits for nobody
class Caches {
 public:
  explicit Caches(DaemonLink& link) : link_(link) {}

  Result<std::uint64_t> open(const kvd_client::CacheOptions& options, Nanoseconds timeout);
  Status close(std::uint64_t cache, Nanoseconds timeout);
  Result<std::uint64_t> lookup(std::uint64_t cache, std::span<const kvd_client::Digest> digests,
                               Nanoseconds timeout);
  Result<std::uint64_t> drop(std::uint64_t cache, std::span<const kvd_client::Digest> digests,
                             Nanoseconds timeout);
  Result<std::uint64_t> retain(std::uint64_t cache, std::span<const kvd_client::Digest> digests,
                               Nanoseconds time, Nanoseconds timeout);
  /// Asks ahead for a lookup, without waiting.
  Status post_lookup(std::uint64_t cache, std::span<const kvd_client::Digest> digests);
  Status post_drop(std::uint64_t cache, std::span<const kvd_client::Digest> digests);
  struct CopyOfBlocks {
    std::uint64_t cache = 0;
    wire::CacheOp op = wire::CacheOp::kStore;
    std::span<const kvd_client::Digest> digests;
    std::span<const std::uint32_t> blocks;
    bool park = false;
  };
  /// store and load. `ticket` is not 0 where the daemon copies, or may copy: then it is to be
  /// polled whatever is returned.
  Status copy(const CopyOfBlocks& copy, Nanoseconds timeout, std::uint64_t& ticket);
  Result<std::uint64_t> label(std::uint64_t cache, const kvd_client::BlockLabels& labels,
                              Nanoseconds timeout);
  Result<kvd_client::CacheChanges> changes(std::uint64_t cache, const kvd_client::CacheCursor& seen,
                                           Nanoseconds timeout);
  /// Failed in a forked child.
  kvd_client::TicketState poll(std::uint64_t ticket);
  Status wait(std::span<const std::uint64_t> tickets, Nanoseconds timeout);

 private:
  Result<std::uint64_t> ask(std::uint64_t cache, wire::CacheOp op,
                            std::span<const kvd_client::Digest> digests, Nanoseconds timeout,
                            std::uint32_t retain_ms = 0);
  Status post(std::uint64_t cache, wire::CacheOp op, std::span<const kvd_client::Digest> digests);

  DaemonLink& link_;
  CacheBook book_;
  LookupsAhead ahead_;  ///< guarded by the link's gate
};

}  // namespace kvd::client
