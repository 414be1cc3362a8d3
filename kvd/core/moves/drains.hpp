#pragma once

#include <cstdint>
#include <optional>

#include "ipc/vocabulary/result.hpp"
#include "kvd/core/cache/cache_copies.hpp"
#include "kvd/core/cache/disk_cache.hpp"
#include "kvd/core/door/status.hpp"
#include "kvd/core/ledger/context.hpp"
#include "kvd/core/ledger/requests.hpp"
#include "kvd/core/moves/request_memory.hpp"

namespace kvd::core {

/// Engines that an operator takes out of service, one or all of the node: they get nothing new, and
/// what they have begun runs to its end. Requests that wait end at once, since another engine can
/// take them at no loss. At the deadline, if there is one, everything that is left ends as well.
/// Both happen at a step of the engine that finds no iteration with these requests under way: what
/// it reports is counted first, and the reply tells of the end.
///
/// For an engine that places its own blocks kvd only decides who comes in, and lets no request in
/// that has not begun. The engine itself sends on what waits there, and at a deadline nothing of it
/// ends. Regions belong to the engine until it gives them back.
///
/// What the node has cached can be written to the remote store meanwhile, so that other nodes go on
/// where this one ends. Blocks of HBM alone come to DRAM once those of DRAM are written, as they
/// may push them out.
///
/// Source: kvd/DESIGN.md "Out of service".
///
/// Owner: control thread. Cost: O(requests of the session) while it drains, else O(1).
class Drains {
 public:
  /// What anyone who asks for something new is told.
  static constexpr const char* kRefusal =
      "this engine is taken out of service: send the request to another one, or put it back with "
      "kvdctl drain --cancel";

  Drains(Context& context, Requests& requests, RequestMemory& memory, DiskCache& disk,
         const CacheCopies& copies)
      : context_(context), requests_(requests), memory_(memory), disk_(disk), copies_(copies) {}

  /// Does nothing for an engine that does not exist.
  void on_drain(const Drain& drain);
  /// Unavailable while the whole node drains.
  [[nodiscard]] Status takes_engines() const;
  /// The engine drains, by itself or with the node.
  [[nodiscard]] bool drains(const Session& session) const { return node_ || session.life.draining; }
  /// Ends what should not run any more, after the step's reports were taken.
  void end_left(Session& session);
  /// Whether blocks that HBM alone has may be copied to DRAM now (CacheCopies).
  [[nodiscard]] bool copies_ahead() const;
  /// Called at every tick: reports once when an engine has nothing left.
  void watch();

  /// None: the engine is in service. `left` counts its requests. For an engine that places its own
  /// blocks it counts those that have begun, and for one of which kvd knows no requests it counts
  /// regions.
  [[nodiscard]] std::optional<DrainStatus> status(const Session& session) const;
  /// The same for the node; `left` counts engines that have something left.
  [[nodiscard]] std::optional<DrainStatus> status() const;
  /// None: nothing is written there for the drain.
  [[nodiscard]] std::optional<RemoteWrites> to_remote() const;

 private:
  void write_all(bool all);
  [[nodiscard]] RemoteWrites written() const;
  [[nodiscard]] Draining drained(const Drain& drain, const std::optional<Draining>& before) const;
  void put_back(EngineId engine);

  Context& context_;
  Requests& requests_;
  RequestMemory& memory_;
  DiskCache& disk_;
  const CacheCopies& copies_;
  std::optional<Draining> node_;
  RemoteWrites before_;  ///< what was stored and lost before the drain
};

}  // namespace kvd::core
