#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ipc/vocabulary/clock.hpp"
#include "kvd/tiers/disk/files/event_fd.hpp"
#include "kvd/tiers/remote/requests.hpp"

namespace kvd::remote {

class Link;
struct Answer;

struct RemoteOptions {
  std::vector<std::string> servers;  ///< as check_address() takes them
  std::string password;              ///< empty: none
  Nanoseconds ttl{0};                ///< of a block that nobody asks for
};

/// Keeps sealed blocks in Redis (6.2 or later) or Valkey servers, and never gives out a byte that
/// it has not verified. A block is on the server that rendezvous hashing names, so a server that is
/// lost costs its share and moves no other block. Replication, eviction and persistence are the
/// servers'. Format: FORMAT.md.
///
/// Each server has a thread ("kvd-remote") with one connection, on which requests are pipelined:
/// finds first, then gets, then puts. Payload goes straight from and into the asker's memory. A
/// server that fails, says nothing for 700 ms while something is under way, or takes over 20 s for
/// a reply is off: what was asked of it ends at once as a miss, and it is tried again, at least
/// every four seconds.
///
/// Source:  kvd design; RESP2.
/// Owner:   one thread opens and closes it; all else is thread-safe. No call waits but close().
/// Errors:  of open(): those of check_address(). Of requests: their completion's Fault; kClosed
///          where the server is off, kEmpty where it has no such block.
class RemoteTier {
 public:
  static Result<std::unique_ptr<RemoteTier>> open(const RemoteOptions& options,
                                                  const std::shared_ptr<const Clock>& clock);
  ~RemoteTier();
  RemoteTier(const RemoteTier&) = delete;
  RemoteTier& operator=(const RemoteTier&) = delete;

  void find(Find find);
  void get(Get get);
  void put(Put put);

  /// Appends what has ended or changed; returns at once.
  void poll(std::vector<Completion>& completions, std::vector<Change>& changes);
  /// Readable while poll() has something to say.
  [[nodiscard]] int completion_fd() const;
  [[nodiscard]] std::vector<ServerStatus> status() const;

 private:
  struct Finding {
    std::size_t left = 0;  ///< servers that have not answered
    disk::Fault fault = disk::Fault::kNone;
    std::vector<bool> there;
    std::vector<std::vector<std::size_t>> asked;  ///< by server: digests that it was asked for
  };
  /// Where links answer. It outlives the tier while a link waits for the resolver.
  struct Desk;

  RemoteTier(std::shared_ptr<Desk> desk, std::shared_ptr<const Clock> clock);
  [[nodiscard]] std::size_t server_of(const disk::Digest& digest) const;

  const std::shared_ptr<Desk> desk_;
  const std::shared_ptr<const Clock> clock_;
  std::vector<std::shared_ptr<Link>> links_;
  std::vector<std::uint64_t> seeds_;  ///< by link, for rendezvous hashing
};

}  // namespace kvd::remote
