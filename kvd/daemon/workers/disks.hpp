#pragma once

#include <atomic>
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ipc/vocabulary/clock.hpp"
#include "kvd/core/door/effects.hpp"
#include "kvd/daemon/base/event_log.hpp"
#include "kvd/daemon/base/inbox.hpp"
#include "kvd/daemon/base/poller.hpp"
#include "kvd/daemon/machine/disk_names.hpp"
#include "kvd/daemon/sessions/event_feed.hpp"
#include "kvd/daemon/workers/disk_job.hpp"
#include "kvd/mover/slab_store.hpp"
#include "kvd/tiers/disk/disk_tier.hpp"
#include "kvd/tiers/disk/files/folders.hpp"

namespace kvd::daemon {

/// The files of cached blocks: a disk::DiskTier for each class, in a folder of its own under
/// disk.path. Tiers are opened, resized and closed on threads of their own, as that may take a
/// while; what a folder holds is told to the Controller from the checkpoint of a clean stop, or
/// header by header in the background. Until all is told the Controller writes nothing there.
/// A disk that cannot be used yet is looked at again, with growing pauses.
/// Source: kvd/tiers/disk/FORMAT.md; kvd/DESIGN.md "Blocks on disk".
/// Owner:  control thread. What it is given must outlive it.
/// Errors: none. What fails is told to the Controller, and to the log, each fault of a class once.
class Disks {
 public:
  struct Settings {
    std::string path;
    Bytes size;   ///< of all classes
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

  /// Once, before anything else.
  void begin() { found(look(settings_.path, *folders_, false), 0); }
  void open(const core::OpenDisk& order);
  void resize(const core::ResizeDisk& order);
  void close(const core::CloseDisk& order);
  void write(const core::WriteDisk& order);
  void read(const core::ReadDisk& order);
  /// Forgets all that is on the disk now, for this kvd and later ones. It holds in this process at
  /// once, and ends once the disk has it written down. Folders that another process has open stay.
  /// Errors: those of the file system.
  [[nodiscard]] std::shared_future<Status> clear();
  /// A tier has something to say.
  void take_finished(core::DiskId disk);
  void on_tick();
  /// Names the folders, and adds those that nobody has open.
  void describe(std::vector<core::DiskModel>& models) const;
  /// Waits a short while for writes under way and begins no others, so that the checkpoint has
  /// them.
  void let_writes_end();
  /// Ends them all, within about a second, and writes checkpoints. False: a device may still touch
  /// DRAM, which must stay until the process ends.
  [[nodiscard]] bool close();

 private:
  struct Files {
    std::shared_ptr<disk::DiskTier> tier;
    std::string folder;
    std::map<Ticket, std::uint64_t> generations;  ///< of writes under way
    std::uint32_t scanned = 0;                    ///< slots that were looked at
    Ticket scan;                                  ///< under way; none: all is known
    std::set<disk::Fault> told;
  };
  using Opened = Result<std::shared_ptr<disk::DiskTier>>;
  /// What the last clean stop wrote; none: all slots are looked at.
  using Index = std::optional<core::DiskFound::Blocks>;
  using Tiers = std::vector<std::shared_ptr<disk::DiskTier>>;

  /// What blocks are called there, once the folders are known.
  static Result<DiskNames> look(const std::string& path, disk::Folders& folders, bool clear);
  void found(const Result<DiskNames>& names, std::uint32_t clears);
  void start(core::DiskId id, DiskJob::Work work);
  void opened(core::DiskId id, const std::string& folder, const Opened& tier, std::uint32_t kept,
              Index index);
  [[nodiscard]] bool is_opening() const;
  /// Has all folders write down what was cleared. One job at a time does so, while none is opened.
  std::shared_future<Status> want_kept();
  void keep_cleared();
  void kept(const Status& status, std::uint32_t clears);
  void refuse(core::DiskId id, core::DiskOpened::Lack lack, const Error& error);
  [[nodiscard]] std::vector<disk::FoundBlock> index_of(core::DiskId id) const;
  void scan_on(core::DiskId id, Files& files);
  void finish(core::DiskId id, Files& files, const disk::Completion& completion);
  void tell(Files& files, disk::Fault fault);
  [[nodiscard]] std::vector<std::span<std::byte>> slabs() const;

  const Uses uses_;
  const Settings settings_;
  const std::shared_ptr<disk::Folders> folders_;
  /// A disk that was closed may still touch DRAM. Shared with jobs, which may outlive this object.
  const std::shared_ptr<std::atomic<bool>> holds_ = std::make_shared<std::atomic<bool>>(false);
  std::map<core::DiskId, std::shared_ptr<DiskJob>> jobs_;  ///< none: of the folder of all
  std::map<core::DiskId, Files> files_;
  std::map<core::DiskId, std::shared_ptr<disk::DiskTier>> closing_;
  std::map<core::DiskId, std::string> names_;  ///< of folders
  std::map<core::DiskId, std::string> said_;   ///< why it has no files
  bool usable_ = false, ending_ = false;
  Nanoseconds pause_{0};
  TimePoint again_{0};  ///< when the folder is looked at again
  std::uint64_t last_scan_ = 0;
  std::uint32_t clears_ = 0, kept_ = 0;  ///< commands, and those that the disk has written down
  std::optional<std::promise<Status>> clearing_;  ///< somebody waits for that
  std::shared_future<Status> cleared_;
};

}  // namespace kvd::daemon
