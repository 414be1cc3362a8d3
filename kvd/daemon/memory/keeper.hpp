#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "kvd/core/door/effects.hpp"
#include "kvd/daemon/config/domains.hpp"
#include "kvd/daemon/memory/kept_memory.hpp"
#include "kvd/mover/slab_store.hpp"

namespace kvd::daemon {

/// Writes down what slots hold, on a thread of its own, as it reads every byte for the sum: 100 us
/// for a block of 2 MiB, and a little more from HBM of a GPU, which crosses the link. It writes
/// down at once that a slot is about to hold something else.
/// Source: kvd/DESIGN.md "Blocks that outlive kvd".
/// Owner:  control thread. What it is given must outlive it.
/// Errors: none; what cannot be written down ends with this daemon.
class Keeper {
 public:
  /// `kept` is called on the keeper's thread; must not block.
  Keeper(KeptMemory& memory, const mover::SlabStore& slabs, const Domains& domains, BootId boot,
         std::function<void(Ticket)> kept);
  /// Drops the rows that wait: they are not written down any more.
  ~Keeper();
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  void keep(const core::KeepRows& order);
  /// A slab of a region is about to be sent to an engine of the domain. `proof`: what the engine
  /// can show later.
  void keep(const core::SendSlab& slab, DomainId domain, const Digest& proof);
  /// Ends all records: no slot has one when it returns.
  void forget(const core::ForgetKept& order);

 private:
  struct Slot {
    KeptMemory::Slot slot;
    kept::Record record;
  };
  struct Job {
    Ticket ticket;
    std::vector<Slot> slots;
  };
  void run();
  void write(const Job& job);

  const mover::SlabStore& slabs_;
  const Domains& domains_;
  const BootId boot_;
  const std::function<void(Ticket)> kept_;
  std::mutex mutex_;  // guards the members up to the thread
  KeptMemory& memory_;
  std::map<KeptMemory::Slot, Ticket> wanted_;  ///< whose record is still wanted, of which job
  std::deque<Job> waiting_;
  bool stopping_ = false;
  std::condition_variable wake_;
  std::thread thread_;  // last: starts when all else stands
};

}  // namespace kvd::daemon
