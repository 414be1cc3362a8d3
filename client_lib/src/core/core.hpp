#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "client_lib/src/attach/call_gate.hpp"
#include "client_lib/src/attach/connector.hpp"
#include "client_lib/src/attach/reattacher.hpp"
#include "client_lib/src/attach/session.hpp"
#include "client_lib/src/core/block_names.hpp"
#include "client_lib/src/core/cache_book.hpp"
#include "client_lib/src/core/lookups_ahead.hpp"
#include "client_lib/src/memory/region_book.hpp"
#include "ipc/shm/layout.hpp"
#include "ipc/vocabulary/clock.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/this_process.hpp"
#include "kvd_client/types.hpp"

namespace kvd::client {

/// The implementation of kvd_client::Client: the same calls with kvd's own Result.
/// Owner:   thread-safe; gate_ serialises all that talks to the daemon and guards regions_.
/// Errors:  PeerGone in a forked child, before anything is touched there.
class Core {
 public:
  /// `model`: as kvd_client::Options::model.
  Core(Introduction introduction, Nanoseconds attach_timeout, std::string model);
  Status connect();
  /// Hands everything back in order. The last call.
  void close();

  [[nodiscard]] bool forked() const { return this_process() != owner_; }
  [[nodiscard]] Result<wire::Welcome> welcome() const;
  /// The daemon's GPU by this process's count, or SlabRange::kNoDevice.
  [[nodiscard]] int device() const;
  Status ping(Nanoseconds timeout);
  Result<kvd_client::Stats> stats(Nanoseconds timeout);

  Result<kvd_client::Region> allocate_region(std::uint64_t bytes, Nanoseconds timeout);
  Status free_region(std::uint64_t id, Nanoseconds timeout);

  // Regions that grow and shrink are in core_spaces.cpp.
  Result<kvd_client::Region> reserve_region(std::uint64_t bytes, Nanoseconds timeout);
  Result<std::uint64_t> grow_region(std::uint64_t id, std::span<const std::uint32_t> positions,
                                    Nanoseconds timeout);
  Status shrink_region(std::uint64_t id, std::uint64_t part, Nanoseconds timeout, bool idle);
  Result<std::uint64_t> share_region(std::uint64_t id, const kvd_client::Demand& demand,
                                     Nanoseconds timeout);

  /// Another holder of the region's mapping. While there is one the region cannot be freed.
  Result<kvd_client::RegionView> view_region(std::uint64_t id, Nanoseconds timeout);

  Status submit(const kvd_client::Request& request, Nanoseconds timeout);
  Status append_tokens(RequestId request, std::span<const std::uint32_t> tokens,
                       Nanoseconds timeout);
  Status name_blocks(RequestId request, std::uint32_t first,
                     std::span<const kvd_client::Digest> digests, Nanoseconds timeout);
  Result<kvd_client::StepResult> step(const wire::StepCommand& command, Nanoseconds timeout);
  Status wait_for_ticket(Ticket ticket, Nanoseconds timeout);
  Status wait_for_layer(std::uint64_t iteration, std::uint32_t group, Nanoseconds timeout);
  Status layer_done(std::uint64_t iteration, std::uint32_t group);
  Status wait_for_room(Nanoseconds timeout);
  Status wait_on_stream(Ticket ticket, void* stream);
  Status wait_layer_on_stream(std::uint64_t iteration, std::uint32_t group, void* stream);
  Status layer_done_on_stream(std::uint64_t iteration, std::uint32_t group, void* stream);
  /// Unavailable once waits were ended without their copies.
  Status confirm();
  Result<std::byte*> block_address(std::uint32_t row, std::uint32_t group, std::uint32_t block);
  Status block_addresses(std::uint32_t row, std::uint32_t group, std::span<std::byte*> addresses);
  /// finish and abort.
  Status end_request(const wire::CommandBody& body, RequestId request, Nanoseconds timeout);
  Status rotate(const wire::RotateBody& body, Nanoseconds timeout);
  Result<std::uint32_t> allocate_blocks(RequestId request, Tokens tokens, Nanoseconds timeout);
  Result<kvd_client::Placement> place(std::span<const std::uint64_t> requests, Nanoseconds timeout);
  Status set_gaps(std::span<const wire::RequestGap> gaps, Nanoseconds timeout);
  /// Never attaches: its caller is in the middle of a step.
  Result<kvd_client::ScheduleResult> schedule(const wire::ScheduleCommand& command,
                                              Nanoseconds timeout);

  Result<std::uint64_t> open_cache(const kvd_client::CacheOptions& options, Nanoseconds timeout);
  Status close_cache(std::uint64_t cache, Nanoseconds timeout);
  Result<std::uint64_t> lookup(std::uint64_t cache, std::span<const kvd_client::Digest> digests,
                               Nanoseconds timeout);
  Result<std::uint64_t> drop(std::uint64_t cache, std::span<const kvd_client::Digest> digests,
                             Nanoseconds timeout);
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
  Status copy_blocks(const CopyOfBlocks& copy, Nanoseconds timeout, std::uint64_t& ticket);
  kvd_client::TicketState poll(std::uint64_t ticket) { return caches_.poll(ticket); }
  Status wait_for_copies(std::span<const std::uint64_t> tickets, Nanoseconds timeout);

 private:
  [[nodiscard]] TimePoint deadline(Nanoseconds timeout) const;
  [[nodiscard]] Status check_fork() const;
  /// The caller's turn to talk to the daemon.
  Result<CallGate::Turn> enter(TimePoint deadline);

  /// Runs body(session, deadline), alone, with the session that a call of this kind is to use.
  template <class Body>
  auto on_memory(Nanoseconds timeout, Body body)
      -> decltype(body(std::declval<const SessionPtr&>(), TimePoint()));
  template <class Body>
  auto on_requests(Nanoseconds timeout, Body body)
      -> decltype(body(std::declval<const SessionPtr&>(), TimePoint()));
  /// Runs wait(session, deadline) beside other calls.
  template <class Wait>
  Status wait_in_session(Nanoseconds timeout, Wait wait);
  /// The same with the present session: never attaches.
  template <class Body>
  auto in_a_step(Nanoseconds timeout, Body body)
      -> decltype(body(std::declval<const SessionPtr&>(), TimePoint()));
  Status command(const wire::CommandBody& body, Nanoseconds timeout);
  Result<std::uint64_t> ask_cache(std::uint64_t cache, wire::CacheOp op,
                                  std::span<const kvd_client::Digest> digests, Nanoseconds timeout);
  Status post_cache(std::uint64_t cache, wire::CacheOp op,
                    std::span<const kvd_client::Digest> digests);
  /// Tells the daemon, in as many commands as it takes.
  Status tell(Session& session, std::span<const wire::BlockName> names, TimePoint deadline) const;

  /// Attaches for the memory that is held, so that a fresh daemon knows of it.
  void attach_where_lost();
  Result<kvd_client::Region> take_region(const SessionPtr& session, RegionId id,
                                         TimePoint deadline);
  /// Hands back the space and all memory behind it.
  static Status close_space(Session& session, const RegionBook::Entry& entry, TimePoint deadline);
  /// Enters it in the book.
  kvd_client::Region keep(RegionBook::Entry entry);
  /// The region, if it grows and shrinks.
  Result<RegionBook::Entry*> space(std::uint64_t id);
  Result<RegionId> space_of(std::uint64_t id, const SessionPtr& session);
  static Status stand(const RegionMapping& space, const RegionMapping& part,
                      std::span<const std::uint32_t> positions);
  /// The daemon gets the slabs back, or hears that they are not mapped any more.
  Status hand_back(RegionBook::Entry& entry, const RegionBook::Part& part, TimePoint deadline);

  const pid_t owner_ = this_process();
  const Nanoseconds attach_timeout_;
  const std::string model_;
  SteadyClock clock_;
  Connector connector_;
  CallGate gate_;
  RegionBook regions_;
  CacheBook caches_;
  LookupsAhead ahead_;                      ///< guarded by gate_
  BlockNames names_;                        ///< guarded by gate_, as regions_ is
  std::unique_ptr<Reattacher> reattacher_;  ///< from the first region on; uses all of the above
};

/// A region that could not be taken is handed back even when the caller's time is over.
inline constexpr Nanoseconds kReturnTimeout = std::chrono::milliseconds(100);
/// Hands back a region that nobody maps any more.
Status finish_region(Session& session, RegionId region, TimePoint deadline);
/// Hands back a region that nobody took.
Status return_region(Session& session, RegionId region, TimePoint deadline);
Error no_region(std::uint64_t id);
/// Hands back regions whose allocation was given up but whose slabs came all the same.
void return_untaken_regions(Session& session, TimePoint deadline);

template <class Body>
auto Core::on_memory(Nanoseconds timeout, Body body)
    -> decltype(body(std::declval<const SessionPtr&>(), TimePoint())) {
  const TimePoint until = deadline(timeout);
  KVD_ASSIGN_OR_RETURN(const auto turn, enter(until));
  KVD_ASSIGN_OR_RETURN(const auto session, connector_.session_for_memory(regions_.total(), until));
  return_untaken_regions(*session, until);
  return body(session, until);
}

template <class Body>
auto Core::on_requests(Nanoseconds timeout, Body body)
    -> decltype(body(std::declval<const SessionPtr&>(), TimePoint())) {
  const TimePoint until = deadline(timeout);
  KVD_ASSIGN_OR_RETURN(const auto turn, enter(until));
  KVD_ASSIGN_OR_RETURN(const auto session,
                       connector_.session_for_requests(regions_.total(), until));
  return_untaken_regions(*session, until);
  auto result = body(session, until);
  if (!result.ok()) connector_.on_failed(result.error());
  return result;
}

}  // namespace kvd::client
