#include "kvd/daemon/workers/disks.hpp"

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "ipc/vocabulary/hex.hpp"
#include "kvd/daemon/workers/disk_blocks.hpp"

namespace kvd::daemon {

namespace {

constexpr Nanoseconds kScanTime = std::chrono::seconds(10);
constexpr Nanoseconds kCloseTime = std::chrono::seconds(1);
constexpr Nanoseconds kRunningCloseTime = std::chrono::seconds(10);
/// How long the end waits for writes and for files that are being opened.
constexpr Nanoseconds kWritePatience = std::chrono::milliseconds(200);
constexpr Nanoseconds kFirstPause = std::chrono::seconds(1);
constexpr Nanoseconds kLongestPause = std::chrono::seconds(60);
/// Files grow and shrink by this part of disk.size.
constexpr std::int64_t kParts = 64;
constexpr std::uint64_t kScans = std::uint64_t{1} << 63;  ///< tickets that are no Controller's
constexpr core::DiskId kClears(std::uint32_t{1} << 31);   ///< a job that is of no class

/// Room for one block at least.
Bytes segment_for(const disk::ClassShape& shape, Bytes size) {
  const Bytes group = disk::kSector * pieces(shape.group_bytes, disk::kSector);
  const Bytes block = disk::kSector * 2 + group * shape.groups;
  const Bytes part =
      kMiB * std::clamp(size.value / kParts / kMiB.value, std::int64_t{1}, kGiB.value / kMiB.value);
  return std::max(part, kMiB * pieces(block, kMiB));
}

Bytes bytes_of(const disk::DiskTier& tier) {
  return tier.grain() * (tier.slots() / tier.layout().slots_per_segment());
}

Error too_small() {
  return make_error(ErrorCode::kInvalidArgument, "a block is larger than disk.size: raise it");
}

Error no_room() {
  return make_error(ErrorCode::kOutOfMemory, "other models have all of disk.size: raise it");
}

/// Engines choose it.
std::string printable(std::string text) {
  for (char& letter : text) {
    if (letter < ' ' || letter > '~') letter = '?';
  }
  return text;
}

std::string folder_name(const disk::Digest& fingerprint) {
  return hex(std::span(fingerprint).first(16));
}

/// Whether the slot may still hold the block.
bool may_come_right(disk::Fault fault) {
  return fault == disk::Fault::kBusy || fault == disk::Fault::kTimedOut ||
         fault == disk::Fault::kClosed;
}

core::DiskFound::Blocks blocks_of(const std::vector<disk::FoundBlock>& found) {
  std::vector<core::DiskFound::Block> blocks;
  blocks.reserve(found.size());
  for (const disk::FoundBlock& block : found) {
    blocks.push_back({block.slot.value, block.generation.value, Digest{block.key.domain},
                      Digest{block.key.digest}});
  }
  return blocks;
}

std::string words(const disk::DiskStatus& status, std::uint32_t slots) {
  std::string text = std::to_string(slots) + " blocks, " + status.io +
                     (status.direct ? ", past the page cache" : ", through the page cache");
  for (const std::string& reason :
       {status.io_reason, status.direct_reason, status.segments_reason, status.registered_reason}) {
    if (!reason.empty()) text += "; " + reason;
  }
  return text;
}

}  // namespace

Disks::Disks(const Uses& uses, Settings settings)
    : uses_(uses),
      settings_(std::move(settings)),
      folders_(std::make_shared<disk::Folders>(settings_.path, settings_.size, settings_.floor)) {}

Disks::~Disks() { (void)close(); }

// ---- the disk itself ----

Result<DiskNames> Disks::look(const std::string& path, disk::Folders& folders, bool clear) {
  KVD_ASSIGN_OR_RETURN(DiskNames names, disk_names(path));
  KVD_TRY(folders.scan());
  if (clear) KVD_TRY(folders.clear());
  return names;
}

void Disks::found(const Result<DiskNames>& names, std::uint32_t clears) {
  if (names.ok() && clears != clears_) return;  // it is looked at again, and cleared
  std::string& said = said_[core::DiskId()];
  if (names.ok()) {
    usable_ = true;
    kept_ = clears;
    if (!said.empty()) uses_.log.info(EngineId(), settings_.path + " can be used now");
    return uses_.events.feed(core::DiskNamed{*names});
  }
  if (std::exchange(said, names.error().message) != said) {
    uses_.log.warn(EngineId(), "no cached block goes to disk, and kvd tries again: " + said);
  }
  pause_ = std::clamp(pause_ * 2, kFirstPause, kLongestPause);
  again_ = uses_.events.now() + pause_;
}

void Disks::on_tick() {
  if (usable_ || uses_.events.now() < again_ || jobs_.contains(core::DiskId())) return;
  start(core::DiskId(),
        [this, path = settings_.path, folders = folders_, clear = kept_ != clears_,
         clears = clears_]() -> DiskJob::Then {
          return [this, names = look(path, *folders, clear), clears] { found(names, clears); };
        });
}

void Disks::start(core::DiskId id, DiskJob::Work work) {
  jobs_[id] = DiskJob::start(uses_.inbox, std::move(work), [this, id] {
    const auto job = jobs_.extract(id);
    if (job.empty()) return;  // all ends
    job.mapped()->finish();
    keep_cleared();
  });
}

// ---- files come and go ----

void Disks::open(const core::OpenDisk& order) {
  disk::DiskOptions options;
  options.shape = shape_of(order.shape);
  const std::string name = folder_name(options.shape.fingerprint);
  // The number may have belonged to a class that was forgotten.
  if (std::exchange(names_[order.disk], name) != name) said_.erase(order.disk);
  if (!order.make && !folders_->has(name)) {
    return uses_.events.feed(core::DiskOpened{order.disk, 0, core::DiskOpened::Lack::kMade});
  }
  options.folder = settings_.path + "/" + name;
  options.capacity = settings_.size;
  options.segment = segment_for(options.shape, settings_.size);
  options.floor = settings_.floor;
  options.on_demand = true;
  start(order.disk,
        [this, id = order.disk, name, options, model = printable(order.model), folders = folders_,
         slabs = slabs(), kept = kept_]() -> DiskJob::Then {
          const Bytes before = folders->bytes_of(name);
          const Bytes wanted = std::min(std::max(before, options.segment), options.capacity);
          if (options.segment > options.capacity) {
            return [this, id] { refuse(id, core::DiskOpened::Lack::kFiles, too_small()); };
          }
          if (!folders->take(name, wanted, model)) {
            return [this, id] { refuse(id, core::DiskOpened::Lack::kRoom, no_room()); };
          }
          auto made = disk::DiskTier::open(options, std::make_shared<SteadyClock>());
          if (!made.ok()) {
            folders->put(name, before, false);
            return [this, id, folder = options.folder, error = made.error(), kept] {
              opened(id, folder, error, kept, {});
            };
          }
          const std::shared_ptr<disk::DiskTier> tier = std::move(*made);
          for (const auto& slab : slabs) tier->add_slab(slab);
          folders->put(name, bytes_of(*tier), true);
          const Status named =
              before > Bytes(0) ? Status() : disk::write_model(options.folder, model);
          Index index;
          if (const auto blocks = tier->take_index()) index = blocks_of(*blocks);
          return [this, id, tier, folder = options.folder, named, kept, index] {
            if (!named.ok()) uses_.log.warn(EngineId(), named.error().message);
            opened(id, folder, tier, kept, index);
          };
        });
}

void Disks::refuse(core::DiskId id, core::DiskOpened::Lack lack, const Error& error) {
  std::string& said = said_[id];
  const bool is_new = std::exchange(said, error.message) != said;
  if (is_new && lack == core::DiskOpened::Lack::kFiles) {
    uses_.log.warn(EngineId(), "cached blocks of a model do not go to disk, and kvd tries again: " +
                                   error.message);
  }
  uses_.events.feed(core::DiskOpened{id, 0, lack});
}

void Disks::opened(core::DiskId id, const std::string& folder, const Opened& tier,
                   std::uint32_t kept, Index index) {
  if (!tier.ok()) return refuse(id, core::DiskOpened::Lack::kFiles, tier.error());
  const Status watched =
      uses_.poller.watch(Poller::Source::kDisk, id.value, (*tier)->completion_fd());
  if (!watched.ok()) {
    folders_->put(names_[id], bytes_of(**tier), false);
    return refuse(id, core::DiskOpened::Lack::kFiles, watched.error());
  }
  said_.erase(id);
  Files& files = files_[id];
  files.tier = *tier;
  files.folder = folder;
  const std::uint32_t slots = files.tier->slots();
  uses_.log.info(EngineId(),
                 "cached blocks go to " + files.folder + ": " + words(files.tier->status(), slots));
  uses_.events.feed(core::DiskOpened{id, slots, core::DiskOpened::Lack::kFiles,
                                     bytes_of(*files.tier), files.tier->grain()});
  if (kept != clears_) {  // it may hold blocks that were cleared since then, or before
    files.tier->clear();
    if (index) index.emplace();
    (void)want_kept();
  }
  if (!index) return scan_on(id, files);
  uses_.log.info(EngineId(), files.folder + ": " + std::to_string(index->size()) +
                                 " blocks by the checkpoint of a clean stop");
  uses_.events.feed(core::DiskFound{id, *index, true});
}

void Disks::resize(const core::ResizeDisk& order) {
  const auto files = files_.find(order.disk);
  if (files == files_.end()) return;
  start(order.disk,
        [this, id = order.disk, wanted = order.bytes, tier = files->second.tier,
         name = names_[order.disk], folders = folders_]() -> DiskJob::Then {
          const Bytes before = bytes_of(*tier);
          const std::string model = folders->list()[name].model;
          if (wanted <= before || folders->take(name, wanted, model)) {
            (void)tier->resize(wanted);
            folders->put(name, bytes_of(*tier), true);
          }
          return [this, id, tier] {
            uses_.events.feed(core::DiskResized{id, tier->slots(), bytes_of(*tier)});
          };
        });
}

void Disks::close(const core::CloseDisk& order) {
  auto files = files_.extract(order.disk);
  if (files.empty()) return uses_.events.feed(core::DiskClosed{order.disk});
  const std::shared_ptr<disk::DiskTier> tier = files.mapped().tier;
  uses_.poller.forget(tier->completion_fd());
  closing_[order.disk] = tier;
  start(order.disk,
        [this, id = order.disk, tier, index = index_of(order.disk), name = names_[order.disk],
         folders = folders_, holds = holds_]() -> DiskJob::Then {
          const Bytes bytes = bytes_of(*tier);
          if (!tier->close(kRunningCloseTime, index).held.empty()) *holds = true;
          return [this, id, name, bytes, folders] {
            folders->put(name, bytes, false);
            closing_.erase(id);
            uses_.events.feed(core::DiskClosed{id});
          };
        });
}

void Disks::describe(std::vector<core::DiskModel>& models) const {
  disk::Folders::Entries folders = folders_->list();
  for (core::DiskModel& model : models) {
    const auto name = names_.find(core::DiskId(model.id));
    if (name == names_.end()) continue;
    model.folder = name->second;
    folders.erase(name->second);
  }
  const auto now = std::chrono::system_clock::now();
  for (const auto& [name, entry] : folders) {
    core::DiskModel model;
    model.folder = name;
    model.model = entry.model;
    model.state = "closed";
    model.bytes = entry.bytes;
    model.idle_s = to_seconds(std::chrono::duration_cast<Nanoseconds>(now - entry.used));
    models.push_back(std::move(model));
  }
}

// ---- what is in them ----

std::vector<disk::FoundBlock> Disks::index_of(core::DiskId id) const {
  std::vector<disk::FoundBlock> index;
  for (const core::DiskFound::Block& block : uses_.events.on_disk(id)) {
    index.push_back({disk::DiskSlot(block.slot),
                     disk::SlotGeneration(block.generation),
                     {block.domain.bytes, block.name.bytes}});
  }
  return index;
}

// One at a time, and after all that somebody waits for (disk::Desk).
void Disks::scan_on(core::DiskId id, Files& files) {
  const std::uint32_t left = files.tier->slots() - files.scanned;
  const std::uint32_t count = std::min(left, disk::kMaxScan);
  files.scan = count > 0 ? Ticket(kScans | ++last_scan_) : Ticket();
  if (count > 0) {
    const disk::DiskSlot first(files.scanned);
    files.scanned += count;
    if (files.tier->scan({files.scan, first, count, kScanTime}).ok()) return;
    files.scan = Ticket();
  }
  uses_.events.feed(core::DiskFound{id, {}, true});
}

// ---- what was cleared ----

std::shared_future<Status> Disks::clear() {
  for (const auto& [id, files] : files_) files.tier->clear();
  for (const auto& [id, tier] : closing_) tier->clear();
  return want_kept();
}

std::shared_future<Status> Disks::want_kept() {
  ++clears_;
  if (!clearing_) cleared_ = clearing_.emplace().get_future().share();
  keep_cleared();
  return cleared_;
}

bool Disks::is_opening() const {
  return std::any_of(jobs_.begin(), jobs_.end(), [&](const auto& job) {
    return job.first != core::DiskId() && job.first != kClears && !files_.contains(job.first) &&
           !closing_.contains(job.first);
  });
}

void Disks::keep_cleared() {
  if (!clearing_ || jobs_.contains(kClears) || is_opening()) return;
  Tiers tiers;
  for (const auto& [id, files] : files_) tiers.push_back(files.tier);
  for (const auto& [id, tier] : closing_) tiers.push_back(tier);
  start(kClears,
        [this, tiers = std::move(tiers), folders = folders_, clears = clears_]() -> DiskJob::Then {
          Status status = folders->clear();
          for (const auto& tier : tiers) {
            if (const Status written = tier->keep_cleared(); !written.ok()) status = written;
          }
          return [this, status, clears] { kept(status, clears); };
        });
}

// Folders that were opened meanwhile get their turn before anybody is told.
void Disks::kept(const Status& status, std::uint32_t clears) {
  if (status.ok()) {
    kept_ = clears;
    if (clears != clears_ || is_opening()) return;
  } else {
    uses_.log.warn(EngineId(), "a later kvd may find what was cleared: " + status.error().message);
  }
  clearing_->set_value(status);
  clearing_.reset();
}

// ---- memory, writes and reads ----

std::vector<std::span<std::byte>> Disks::slabs() const {
  std::vector<std::span<std::byte>> slabs;
  const auto size = static_cast<std::size_t>(uses_.slabs.slab_bytes(Tier::kDram).value);
  // Slabs that have no memory yet are used without having been registered.
  for (std::uint32_t slab = 0; slab < uses_.slabs.count(Tier::kDram); ++slab) {
    if (!uses_.slabs.has(Tier::kDram, SlabIndex(slab))) continue;
    const std::uintptr_t at = uses_.slabs.address(Tier::kDram, SlabIndex(slab));
    slabs.emplace_back(reinterpret_cast<std::byte*>(at), size);
  }
  return slabs;
}

void Disks::write(const core::WriteDisk& order) {
  if (ending_) return;
  const core::DiskBlock& block = order.block;
  const auto files = files_.find(block.disk);
  if (files != files_.end()) {
    const auto stored =
        files->second.tier->store({order.ticket, disk::DiskSlot(block.slot), key_of(block),
                                   memory_of<const std::byte>(uses_.slabs, block), block.patience});
    if (stored.ok()) {
      files->second.generations[order.ticket] = stored->value;
      return;
    }
  }
  uses_.events.feed(core::DiskFinished{order.ticket, false, 0, true, false});
}

void Disks::read(const core::ReadDisk& order) {
  const core::DiskBlock& block = order.block;
  const auto files = files_.find(block.disk);
  if (files != files_.end()) {
    const Status asked = files->second.tier->load(
        {order.ticket, disk::DiskSlot(block.slot), disk::SlotGeneration(order.generation),
         key_of(block), 0, memory_of<std::byte>(uses_.slabs, block), block.patience});
    if (asked.ok()) return;
  }
  uses_.events.feed(core::DiskFinished{order.ticket, false, 0, false, false});
}

void Disks::take_finished(core::DiskId id) {
  const auto found = files_.find(id);
  if (found == files_.end()) return;
  std::vector<disk::Completion> completions;
  found->second.tier->poll(completions);
  for (const disk::Completion& completion : completions) finish(id, found->second, completion);
}

void Disks::finish(core::DiskId id, Files& files, const disk::Completion& completion) {
  if (completion.fault != disk::Fault::kNone) tell(files, completion.fault);
  if ((completion.ticket.value & kScans) != 0) {
    if (completion.ticket != files.scan) return;  // it was late, and the next read is under way
    uses_.events.feed(core::DiskFound{id, blocks_of(completion.found), false});
    return scan_on(id, files);
  }
  core::DiskFinished finished;
  finished.ticket = completion.ticket;
  finished.ok = completion.fault == disk::Fault::kNone;
  finished.gone = !finished.ok && !may_come_right(completion.fault);
  finished.memory_held = completion.memory_held;
  const auto written = files.generations.find(completion.ticket);
  if (written != files.generations.end()) {
    finished.generation = written->second;
    files.generations.erase(written);
  }
  uses_.events.feed(finished);
}

void Disks::tell(Files& files, disk::Fault fault) {
  if (!files.told.insert(fault).second) return;
  uses_.log.warn(EngineId(), "a block on disk was a miss (" + std::string(disk::name(fault)) +
                                 ") in " + files.folder +
                                 ": it is computed again; further ones are counted "
                                 "(kvd_disk_failures_total)");
}

void Disks::let_writes_end() {
  ending_ = true;
  const auto until = std::chrono::steady_clock::now() + kWritePatience;
  for (auto& [id, files] : files_) {
    while (!files.generations.empty() && std::chrono::steady_clock::now() < until) {
      pollfd event{files.tier->completion_fd(), POLLIN, 0};
      (void)::poll(&event, 1, 10);
      take_finished(id);
    }
  }
}

bool Disks::close() {
  for (const auto& [id, job] : jobs_) {
    if (!job->give_up(kWritePatience)) *holds_ = true;  // it may be one that closes a disk
  }
  jobs_.clear();
  if (clearing_) {
    clearing_->set_value(make_error(ErrorCode::kUnavailable,
                                    "kvd ends before the disk has it: clear the cache again"));
    clearing_.reset();
  }
  std::atomic<bool> free{!*holds_};
  std::vector<std::thread> closing;
  for (auto& [id, files] : files_) {
    uses_.poller.forget(files.tier->completion_fd());
    std::optional<std::vector<disk::FoundBlock>> index;
    if (!files.scan) index = index_of(id);  // otherwise the next start has to scan as well
    closing.emplace_back([&free, tier = files.tier, index = std::move(index)]() mutable {
      if (!tier->close(kCloseTime, std::move(index)).held.empty()) free = false;
    });
  }
  for (std::thread& one : closing) one.join();
  files_.clear();
  return free;
}

}  // namespace kvd::daemon
