#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "client_lib/src/attach/reattacher.hpp"
#include "client_lib/src/core/daemon_link.hpp"
#include "kvd_client/types.hpp"

namespace kvd::client {

/// The calls of level 1: memory that the client rents.
/// Owner:   thread-safe, by the link's gate
class Regions {
 public:
  explicit Regions(DaemonLink& link) : link_(link) {}
  /// Ends what attaches by itself. The client's regions stay.
  void stop() { reattacher_.reset(); }

  Result<kvd_client::Region> allocate(std::uint64_t bytes, Nanoseconds timeout);
  Status free(std::uint64_t id, Nanoseconds timeout);
  /// Another holder of the region's mapping. While there is one the region cannot be freed.
  Result<kvd_client::RegionView> view(std::uint64_t id, Nanoseconds timeout);

  // Regions that grow and shrink are in spaces.cpp.
  Result<kvd_client::Region> reserve(std::uint64_t bytes, Nanoseconds timeout);
  Result<std::uint64_t> grow(std::uint64_t id, std::span<const std::uint32_t> positions,
                             Nanoseconds timeout);
  /// Grows a region whose daemon is gone, by memory of this process. It never shrinks again.
  Status back(std::uint64_t id, std::span<const std::uint32_t> positions, Nanoseconds timeout);
  Status shrink(std::uint64_t id, std::uint64_t part, Nanoseconds timeout, bool idle);
  Result<std::uint64_t> share(std::uint64_t id, const kvd_client::Demand& demand,
                              Nanoseconds timeout);

 private:
  static Error none(std::uint64_t id);
  /// Attaches again, for the sake of the memory that is held, where the daemon went away. Claims
  /// that memory, so that a fresh daemon knows of it.
  void attach_where_lost();
  static RegionBook::Grant granted(const SessionPtr& session, RegionId id);
  Result<kvd_client::Region> take_region(const SessionPtr& session, RegionId id,
                                         TimePoint deadline);
  /// Hands back the space and all memory behind it.
  static Status close_space(const SessionPtr& session, const RegionBook::Entry& entry,
                            TimePoint deadline);
  /// Enters it in the book.
  kvd_client::Region keep(RegionBook::Entry entry);
  /// The region, if it grows and shrinks.
  Result<RegionBook::Entry*> space(std::uint64_t id);
  Result<RegionId> space_of(std::uint64_t id, const SessionPtr& session);
  static Status stand(const RegionMapping& space, const RegionMapping& part,
                      std::span<const std::uint32_t> positions);
  /// The daemon gets the slabs back, or hears that they are not mapped any more.
  static Status hand_back(const SessionPtr& session, const RegionBook::Entry& entry,
                          const RegionBook::Part& part, TimePoint deadline);

  DaemonLink& link_;
  std::unique_ptr<Reattacher> reattacher_;  ///< from the first region on
};

}  // namespace kvd::client
