#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "ipc/vocabulary/clock.hpp"
#include "kvd/core/effects.hpp"
#include "kvd/daemon/event_feed.hpp"
#include "kvd/daemon/event_log.hpp"
#include "kvd/daemon/inbox.hpp"
#include "kvd/daemon/poller.hpp"
#include "kvd/mover/slab_store.hpp"
#include "kvd/tiers/disk/disk_tier.hpp"

namespace kvd::daemon {

/// The files of cached blocks: a disk::DiskTier for each class, in a folder of its own under
/// disk.path. Tiers are opened on threads of their own, as that may take a while; what a folder
/// holds is told to the Controller from the checkpoint of a clean stop, or header by header in the
/// background. Until all is told the Controller writes nothing there.
/// Source: kvd/tiers/disk/FORMAT.md; kvd/DESIGN.md "Blocks on disk".
/// Owner:  control thread. What it is given must outlive it.
/// Errors: none. What fails is told to the Controller, and to the log, each fault of a class once.
class Disks {
 public:
  struct Settings {
    std::string path;
    Bytes size;   ///< of each class
    Bytes floor;  ///< room that the file system must have left
  };
  struct Uses {
    const mover::SlabStore& slabs;
    EventFeed& events;
    EventLog& log;
    Poller& poller;
    Inbox& inbox;
  };

  Disks(const Uses& uses, Settings settings);
  ~Disks();
  Disks(const Disks&) = delete;
  Disks& operator=(const Disks&) = delete;

  void open(const core::OpenDisk& order);
  void write(const core::WriteDisk& order);
  void read(const core::ReadDisk& order);
  /// A tier has something to say.
  void take_finished(core::DiskId disk);
  /// Ends them all, within about a second each, and writes checkpoints. False: a device may still
  /// touch DRAM, which must stay until the process ends.
  [[nodiscard]] bool close();

 private:
  struct Opening;
  struct Files {
    std::unique_ptr<disk::DiskTier> tier;
    std::string folder;
    std::map<Ticket, std::uint64_t> generations;  ///< of writes under way
    std::uint32_t scanned = 0;                    ///< slots that were looked at
    Ticket scan;                                  ///< under way; none: all is known
    std::set<disk::Fault> told;
  };

  void opened(core::DiskId id, const std::shared_ptr<Opening>& opening);
  void scan_on(core::DiskId id, Files& files);
  void finish(core::DiskId id, Files& files, const disk::Completion& completion);
  void tell(Files& files, disk::Fault fault);
  template <class Byte>
  [[nodiscard]] std::vector<std::span<Byte>> memory_of(const core::DiskBlock& block) const;

  const Uses uses_;
  const Settings settings_;
  std::map<core::DiskId, std::shared_ptr<Opening>> opening_;
  std::map<core::DiskId, Files> files_;
  std::uint64_t last_scan_ = 0;
};

}  // namespace kvd::daemon
