#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "kvd_client/result.hpp"
#include "kvd_client/types.hpp"

namespace kvd_client {

class Caches;

/// A process's session with kvd: rents memory (regions) or lets kvd schedule its requests (submit
/// and step). Every call ends by its timeout.
///
/// Daemon gone: calls return Unavailable; regions stay readable until freed. The next call attaches
///   again by itself. Requests of the lost session are gone: the first level-3 call says so once
///   with Unavailable, and only that call invalidates addresses taken with block_address(). Until
///   then blocks in host memory read as zeros, since their memory is the next daemon's.
/// Fork: in a forked child every call returns PeerGone, the mappings are absent, and destroying the
///   client there changes nothing for the parent.
/// Owner: thread-safe; commands are serialised inside, wait() is not.
class KVD_CLIENT_API Client {
 public:
  static Result<Client> open(const Options& options);

  /// Hands everything that the session holds back to the daemon. Streams that wait for a ticket go
  /// on. Memory that the GPU still uses after a second stays mapped, and the daemon keeps it back,
  /// until the process ends.
  ~Client();
  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;

  [[nodiscard]] Result<SessionInfo> session() const;
  Status ping(Duration timeout);

  /// Call these two around the capture of a CUDA graph, whichever stream and thread captures.
  /// Between them kvd neither maps nor unmaps anything of a GPU in this process, for any client, as
  /// that would end the capture. The daemon's requests wait; allocate_region() and free_region()
  /// answer WouldBlock. Holds add up. DeadlineExceeded where a mapping under way does not end in
  /// time.
  static Status hold_mappings(Duration timeout);
  static void release_mappings();

  // Level 1.
  Result<Region> allocate_region(std::uint64_t bytes, Duration timeout);
  /// Unmaps the region, whose address is invalid afterwards, and hands its slabs back. A region of
  /// an earlier daemon is only unmapped. With CUDA memory it waits for the process's work on the
  /// GPU. WouldBlock while tensors view it, while mappings are held, and where a graph is captured
  /// without holding them: that capture has failed.
  Status free_region(std::uint64_t id, Duration timeout);

  // Level 1, for memory that comes and goes, so that several engines can share the pool. Reserves
  // addresses for `bytes`, rounded up to whole slabs, with no memory behind them. Reading or
  // writing there is an error until grow_region() has put memory there. free_region() ends it.
  Result<Region> reserve_region(std::uint64_t bytes, Duration timeout);
  /// Puts a zeroed slab behind each position (position p is at address + p * granularity), all or
  /// none, at most 4096. Returns the number of the part. OutOfMemory, QuotaExceeded or
  /// DeadlineExceeded where there is no room; InvalidArgument for a position that has memory;
  /// Unavailable once the daemon that it was reserved with is gone.
  Result<std::uint64_t> grow_region(std::uint64_t id, std::span<const std::uint32_t> positions,
                                    Duration timeout);
  /// Puts a zeroed slab of this process's own behind each position of a region whose daemon is
  /// gone, all or none, until the region is freed. InvalidArgument while that daemon is there.
  Status back_region(std::uint64_t id, std::span<const std::uint32_t> positions, Duration timeout);
  /// Unmaps a part and hands its slabs back; the addresses stay reserved. Nothing may use them any
  /// more. With CUDA memory it waits for the process's work on the GPU, unless `idle` says that the
  /// caller has seen the end of all work that used the part.
  Status shrink_region(std::uint64_t id, std::uint64_t part, Duration timeout, bool idle = false);
  /// How many bytes the region may have now, beside all other growing regions of the node. If that
  /// is less than it has, parts are to be handed back soon. Nothing is taken away. Ask every few
  /// steps: after 2 s without a question kvd assumes that nothing more is wanted.
  Result<std::uint64_t> share_region(std::uint64_t id, const Demand& demand, Duration timeout);
  /// The region for a tensor that views it. While the view's `mapping` lives the region stays
  /// mapped and cannot be freed.
  Result<RegionView> view_region(std::uint64_t id, Duration timeout);

  // Level 3.
  /// InvalidArgument for content whose tokens are not all of the prompt.
  Status submit(const Request& request, Duration timeout);
  /// Adds tokens of the answer behind those that submit() and this call were given. Other requests
  /// can find the blocks that they fill once this request has ended. Call it before the report that
  /// ends the request. NotFound for a request that was submitted without content.
  Status append_tokens(std::uint64_t request, std::span<const std::uint32_t> tokens,
                       Duration timeout);
  /// In place of tokens: gives digests that the engine has made itself, of the blocks from `first`
  /// on. In order, without gaps, each once.
  Status name_blocks(std::uint64_t request, std::uint32_t first, std::span<const Digest> digests,
                     Duration timeout);
  /// Reports what finished and learns what the next iteration shall do. `iteration_running` is the
  /// one executing meanwhile, 0 for an engine that calls step() between iterations.
  Result<StepResult> step(std::span<const StepReport> reports, std::uint64_t iteration_finished,
                          std::uint64_t iteration_running, Duration timeout);
  /// Returns once the ticket's copy is complete; Unavailable if the daemon died before.
  Status wait(std::uint64_t ticket, Duration timeout);
  /// Before layer group `group` (from 0) of an iteration whose run list has a streamed entry:
  /// returns once the group's blocks are all in HBM; fails as wait() does.
  Status wait_layer(std::uint64_t iteration, std::uint32_t group, Duration timeout);
  /// Says that all reads and writes of the layer group have ended, for the whole batch, so that
  /// what it streamed may be overwritten. Call it for the groups in order. Returns at once;
  /// Unavailable if the daemon died before.
  Status layer_done(std::uint64_t iteration, std::uint32_t group);
  /// The same as wait() for a stream of the daemon's GPU, a CUstream or null for the default one:
  /// what is put into the stream later starts once the ticket's copy is complete. Returns at once.
  /// InvalidArgument while the stream is being captured. If the daemon dies the stream goes on
  /// without the bytes: confirm() says so. Unsupported with host memory and where the driver
  /// cannot.
  Status wait_on_stream(std::uint64_t ticket, void* stream);
  /// wait_layer() for a stream, with the terms of wait_on_stream(). InvalidArgument for an
  /// iteration after the last one that a step named with a streamed entry.
  Status wait_layer_on_stream(std::uint64_t iteration, std::uint32_t group, void* stream);
  /// As layer_done(), once the stream has come here. Returns at once. Use one stream for all groups
  /// of an iteration, or layer_done() for all.
  Status layer_done_on_stream(std::uint64_t iteration, std::uint32_t group, void* stream);
  /// Call it after a stream's work is done and before a token of it leaves. Unavailable: a wait was
  /// ended without its bytes, and the step is to be dropped.
  Status confirm();
  /// For an engine that has nothing to run: returns when a copy out of HBM completes, which may
  /// have made room, or when `timeout` is over. Neither is a failure.
  Status wait_for_room(Duration timeout);
  /// The address of the block in this process, for a row of the last step's run list. `group`
  /// counts layer groups, `block` blocks of block_tokens tokens.
  Result<std::byte*> block_address(std::uint32_t row, std::uint32_t group, std::uint32_t block);
  /// The addresses of the first `addresses.size()` blocks of a row's group. NotFound where it has
  /// fewer.
  Status block_addresses(std::uint32_t row, std::uint32_t group, std::span<std::byte*> addresses);
  Status finish(std::uint64_t request, Duration timeout);
  /// Gives a request up, whatever its state.
  Status abort(std::uint64_t request, Duration timeout);
  Status rotate(std::uint64_t request, RotateDirection direction, Duration timeout);
  /// Asks for room for `tokens` more tokens of the request. Returns the blocks granted per layer
  /// group. They have addresses from the next step() on, whose run list names a table with them.
  Result<std::uint32_t> allocate_blocks(std::uint64_t request, std::uint64_t tokens,
                                        Duration timeout);
  /// Plans placement for the given running requests now; without any, for all.
  Result<Placement> place(std::span<const std::uint64_t> requests, Duration timeout);
  Result<Stats> stats(Duration timeout);

  // For a session without a shape, whose engine picks block ids itself: whom its next step preempts
  // and admits, by kvd's policies and goals in force. Changes nothing else: an answer
  /// that is not followed is made anew from what the next call says. One round trip, a few
  /// microseconds of the daemon's time a request; never attaches: Unavailable at once where the
  /// daemon is gone (ping() attaches again). InvalidArgument for a session with a shape, more than
  /// kMostScheduled requests, an id that is 0 or named twice, and numbers out of range.
  /// DeadlineExceeded where another call of this client, or the daemon, takes longer than
  /// `timeout`. After any failure go on as without kvd.
  Result<ScheduleResult> schedule(const ScheduleInput& input, Duration timeout);
  /// Tells the longest gaps of requests, at most 4096. Say each once, after the first schedule()
  /// that names the request. A request that kvd does not know is passed over, and the session's end
  /// forgets all. Never attaches. Unsupported: the daemon is older, and the class's gap counts.
  Status set_gaps(std::span<const RequestGap> gaps, Duration timeout);
  /// Which layers of running requests are to stay in HBM, by kvd's placement policy: the last plan
  /// that was made, of those of its requests that are named now. Another is made meanwhile, so ask
  /// again some steps later; no entry: there is none. For a session without a shape. Never
  /// attaches. Unsupported: the daemon is older.
  Result<Placement> place_layers(const LayersInput& input, Duration timeout);
  /// The number of an SLO class by its name, for ScheduleRequest::slo_class. A class that the
  /// daemon does not know counts as the domain's.
  static std::uint32_t slo_class_number(std::string_view name);

  /// The calls of level 2.
  [[nodiscard]] Caches caches();

 private:
  class Impl;
  friend class Caches;
  explicit Client(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Level 2: an engine that places its blocks itself, in a region of level 1, stores them in kvd's
/// DRAM under digests, and loads them into other blocks. kvd.h says more about each call.
/// Owner: thread-safe; part of a Client, and to be used no longer than that
class KVD_CLIENT_API Caches {
 public:
  /// A cache ends with close(), the client, or the daemon: then its calls fail with Unavailable.
  Result<std::uint64_t> open(const CacheOptions& options, Duration timeout);
  Status close(std::uint64_t cache, Duration timeout);
  /// How many leading digests can be loaded.
  Result<std::uint64_t> lookup(std::uint64_t cache, std::span<const Digest> digests,
                               Duration timeout);
  /// Asks ahead for a lookup of these digests, or of the first of them, that follows within a
  /// second. It does not wait: the question goes with the next call, and the lookup after that
  /// finds the answer. Where this fails, the lookup asks.
  Status post_lookup(std::uint64_t cache, std::span<const Digest> digests);
  /// Copies blocks of the region to DRAM, under their digests. `park`: they stay until they are
  /// dropped or this session ends; else until something worth more needs the room. OutOfMemory and
  /// QuotaExceeded: nothing was stored. `ticket` is set where the daemon copies; also with
  /// DeadlineExceeded, where it may: poll it before the blocks are written again.
  Status store(std::uint64_t cache, std::span<const Digest> digests,
               std::span<const std::uint32_t> blocks, bool park, Duration timeout,
               std::uint64_t& ticket);
  /// Copies what was stored into blocks of the region: all of it, or NotFound.
  Status load(std::uint64_t cache, std::span<const Digest> digests,
              std::span<const std::uint32_t> blocks, Duration timeout, std::uint64_t& ticket);
  /// The blocks are neither found nor parked any more. Returns how many there were.
  Result<std::uint64_t> drop(std::uint64_t cache, std::span<const Digest> digests,
                             Duration timeout);
  /// As drop(), for 4096 digests at most, but without waiting: it goes with the next call. Never
  /// attaches.
  Status post_drop(std::uint64_t cache, std::span<const Digest> digests);
  /// The blocks that are in DRAM leave it after all others of the domain, for `time` from now on,
  /// or until this is called again; 0: not any more. All of them, or none where more of the
  /// domain's DRAM would be retained than may be; kvd bounds the time, too. Returns how many are.
  /// InvalidArgument for more than 24 hours, and of an older daemon.
  Result<std::uint64_t> retain(std::uint64_t cache, std::span<const Digest> digests, Duration time,
                               Duration timeout);
  /// Says what is to come of blocks. `time`: of kRetain and kPrefetch, at most 24 hours, else 0.
  /// Returns of how many blocks kvd takes it: of kPrefetch how many are on their way.
  /// QuotaExceeded: nothing was pinned or prefetched, as more of the domain's DRAM would be
  /// retained than may be.
  Result<std::uint64_t> hint(std::uint64_t cache, Hint hint, std::span<const Digest> digests,
                             Duration time, Duration timeout);
  /// Labels blocks, before or after they are stored: from then on changes() tells every session of
  /// the domain with a cache of the same kind what became of them, tokens included. Returns how
  /// many labels kvd keeps; it has room for a number of them. InvalidArgument for more than 1024
  /// blocks or other than all their tokens. Never label what others must not learn of, as blocks of
  /// a salted prompt.
  Result<std::uint64_t> label(std::uint64_t cache, const BlockLabels& labels, Duration timeout);
  /// Which labelled blocks came to a memory or the disk, or left them, since the cursor, in the
  /// order of their last change: about a thousand at a time. A block may be told of before its
  /// parent.
  Result<CacheChanges> changes(std::uint64_t cache, const CacheCursor& seen, Duration timeout);
  /// How far copies are. It asks nobody. Failed for a copy that is not known, or that was reported
  /// as over 256 copies ago.
  std::vector<TicketState> poll(std::span<const std::uint64_t> tickets);
  /// Returns once all of them are over.
  Status wait(std::span<const std::uint64_t> tickets, Duration timeout);

 private:
  friend class Client;
  explicit Caches(Client::Impl& impl) : impl_(&impl) {}
  Client::Impl* impl_;
};

}  // namespace kvd_client
