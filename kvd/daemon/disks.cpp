#include "kvd/daemon/disks.hpp"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "ipc/digest/sha256.hpp"

namespace kvd::daemon {

namespace {

constexpr Nanoseconds kScanTime = std::chrono::seconds(10);
constexpr Nanoseconds kCloseTime = std::chrono::seconds(1);
constexpr std::uint64_t kScans = std::uint64_t{1} << 63;  ///< tickets that are no Controller's

/// All that a folder's blocks have in common, as the format wants it.
disk::ClassShape shape_of(const core::DiskShape& shape) {
  std::vector<std::uint8_t> text(shape.fingerprint.digest.bytes.begin(),
                                 shape.fingerprint.digest.bytes.end());
  for (const std::uint32_t number :
       {shape.layers, shape.layers_per_block, shape.block_tokens, shape.ranks, shape.groups}) {
    for (int byte = 0; byte < 4; ++byte) {
      text.push_back(static_cast<std::uint8_t>(number >> (8 * byte)));
    }
  }
  return {digest::Sha256()(text).bytes, shape.groups, shape.slot_bytes};
}

std::string folder_name(const disk::Digest& fingerprint) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string name;
  for (std::size_t i = 0; i < 16; ++i) {
    name += kDigits[fingerprint[i] >> 4];
    name += kDigits[fingerprint[i] & 15];
  }
  return name;
}

/// Whether the slot may still hold the block.
bool may_come_right(disk::Fault fault) {
  return fault == disk::Fault::kBusy || fault == disk::Fault::kTimedOut ||
         fault == disk::Fault::kClosed;
}

disk::BlockKey key_of(const core::DiskBlock& block) {
  return {block.domain.bytes, block.name.bytes};
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

/// A tier that is being opened, by a thread that may outlive all else: a disk may hang.
struct Disks::Opening {
  std::mutex mutex;
  std::condition_variable ended_changed;
  bool ended = false;   // guarded by mutex, as the next
  bool closed = false;  ///< nobody wants it any more
  std::optional<Result<std::unique_ptr<disk::DiskTier>>> result;
  std::string folder;
  std::thread thread;
};

Disks::Disks(const Uses& uses, Settings settings) : uses_(uses), settings_(std::move(settings)) {}

Disks::~Disks() { (void)close(); }

void Disks::open(const core::OpenDisk& order) {
  disk::DiskOptions options;
  options.shape = shape_of(order.shape);
  options.folder = settings_.path + "/" + folder_name(options.shape.fingerprint);
  options.capacity = settings_.size;
  options.segment = std::min(options.segment, settings_.size);
  options.floor = settings_.floor;
  std::vector<std::span<std::byte>> slabs;
  const auto size = static_cast<std::size_t>(uses_.slabs.slab_bytes(Tier::kDram).value);
  for (std::uint32_t slab = 0; slab < uses_.slabs.count(Tier::kDram); ++slab) {
    const std::uintptr_t at = uses_.slabs.address(Tier::kDram, SlabIndex(slab));
    slabs.emplace_back(reinterpret_cast<std::byte*>(at), size);
  }
  const auto opening = std::make_shared<Opening>();
  opening->folder = options.folder;
  opening_[order.disk] = opening;
  opening->thread = std::thread([this, opening, id = order.disk, options, slabs] {
    auto tier = disk::DiskTier::open(options, std::make_shared<SteadyClock>());
    const std::lock_guard lock(opening->mutex);
    if (!opening->closed && tier.ok()) {
      for (const auto& slab : slabs) (*tier)->add_slab(slab);
    }
    opening->result = std::move(tier);
    opening->ended = true;
    opening->ended_changed.notify_all();
    if (!opening->closed) uses_.inbox.post([this, opening, id] { opened(id, opening); });
  });
}

void Disks::opened(core::DiskId id, const std::shared_ptr<Opening>& opening) {
  if (opening_.erase(id) == 0) return;  // all ends
  opening->thread.join();
  if (!opening->result->ok()) {
    uses_.log.warn(EngineId(), "cached blocks of a model do not go to disk: " +
                                   opening->result->error().message);
    return uses_.events.feed(core::DiskOpened{id, 0});
  }
  Files& files = files_[id];
  files.tier = std::move(**opening->result);
  files.folder = opening->folder;
  const Status watched =
      uses_.poller.watch(Poller::Source::kDisk, id.value, files.tier->completion_fd());
  if (!watched.ok()) {
    files_.erase(id);
    return uses_.events.feed(core::DiskOpened{id, 0});
  }
  const std::uint32_t slots = files.tier->slots();
  uses_.log.info(EngineId(),
                 "cached blocks go to " + files.folder + ": " + words(files.tier->status(), slots));
  uses_.events.feed(core::DiskOpened{id, slots});
  if (const auto index = files.tier->take_index()) {
    core::DiskFound found{id, {}, true};
    for (const disk::FoundBlock& block : *index) {
      found.blocks.push_back({block.slot.value, block.generation.value, Digest{block.key.domain},
                              Digest{block.key.digest}});
    }
    return uses_.events.feed(std::move(found));
  }
  scan_on(id, files);
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

template <class Byte>
std::vector<std::span<Byte>> Disks::memory_of(const core::DiskBlock& block) const {
  std::vector<std::span<Byte>> groups;
  groups.reserve(block.dram.size());
  for (const SlotId slot : block.dram) {
    const std::uintptr_t at = uses_.slabs.address(Tier::kDram, slot, block.slot_bytes);
    groups.emplace_back(reinterpret_cast<Byte*>(at),
                        static_cast<std::size_t>(block.slot_bytes.value));
  }
  return groups;
}

void Disks::write(const core::WriteDisk& order) {
  const core::DiskBlock& block = order.block;
  const auto files = files_.find(block.disk);
  if (files != files_.end()) {
    const auto stored =
        files->second.tier->store({order.ticket, disk::DiskSlot(block.slot), key_of(block),
                                   memory_of<const std::byte>(block), block.patience});
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
         key_of(block), 0, memory_of<std::byte>(block), block.patience});
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
    if (completion.ticket != files.scan) return;  // it was late, and the next is under way
    core::DiskFound found{id, {}, false};
    for (const disk::FoundBlock& block : completion.found) {
      found.blocks.push_back({block.slot.value, block.generation.value, Digest{block.key.domain},
                              Digest{block.key.digest}});
    }
    uses_.events.feed(std::move(found));
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

bool Disks::close() {
  for (const auto& entry : opening_) {
    Opening& opening = *entry.second;
    std::unique_lock lock(opening.mutex);
    opening.closed = true;
    const bool ended =
        opening.ended_changed.wait_for(lock, kCloseTime, [&opening] { return opening.ended; });
    lock.unlock();
    ended ? opening.thread.join() : opening.thread.detach();
  }
  opening_.clear();
  bool free = true;
  for (auto& [id, files] : files_) {
    uses_.poller.forget(files.tier->completion_fd());
    std::optional<std::vector<disk::FoundBlock>> index;
    if (!files.scan) index.emplace();  // else the next start scans, too
    for (const core::DiskFound::Block& block : uses_.events.on_disk(id)) {
      if (!index) break;
      index->push_back({disk::DiskSlot(block.slot),
                        disk::SlotGeneration(block.generation),
                        {block.domain.bytes, block.name.bytes}});
    }
    const disk::DiskTier::Closed closed = files.tier->close(kCloseTime, std::move(index));
    free = free && closed.held.empty();
  }
  files_.clear();
  return free;
}

}  // namespace kvd::daemon
