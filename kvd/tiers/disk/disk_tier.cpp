#include "kvd/tiers/disk/disk_tier.hpp"

#include <algorithm>
#include <limits>
#include <system_error>
#include <utility>

#include "ipc/vocabulary/keep.hpp"
#include "kvd/tiers/disk/files/checkpoint.hpp"
#include "kvd/tiers/disk/files/cleared.hpp"
#include "kvd/tiers/disk/files/file_limit.hpp"
#include "kvd/tiers/disk/files/probe.hpp"
#include "kvd/tiers/disk/workers/pool.hpp"
#include "kvd/tiers/disk/workers/ring.hpp"
#include "kvd/tiers/disk/workers/worker.hpp"

namespace kvd::disk {
namespace {

constexpr Nanoseconds kCloseTime = std::chrono::seconds(10);
// Entries of the ring: a request has one or two, or one a layer group.
constexpr unsigned kRingDepth = 256;
constexpr unsigned kGenerationBits = 40;

bool choose_direct(const DiskOptions& options, const Folder& folder, const Layout& layout,
                   DiskStatus& words) {
  if (!options.direct) {
    words.direct_reason = "switched off";
  } else if (!layout.fills_sectors()) {
    words.direct_reason = "a layer group is no multiple of 4 KiB";
  } else if (const Status works = try_direct(folder); !works.ok()) {
    words.direct_reason = works.error().message;
  }
  return words.direct_reason.empty();
}

Result<std::unique_ptr<Io>> open_ring(const Folder& folder, bool direct) {
  KVD_ASSIGN_OR_RETURN(auto ring, Ring::open(kRingDepth));
  return try_io(std::move(ring), folder, direct);
}

Result<std::unique_ptr<Io>> choose_io(const DiskOptions& options, const Folder& folder,
                                      DiskStatus& words) {
  if (options.io_uring) {
    Result<std::unique_ptr<Io>> ring = open_ring(folder, words.direct);
    if (ring.ok()) return ring;
    words.io_reason = ring.error().message;
  } else {
    words.io_reason = "switched off";
  }
  KVD_ASSIGN_OR_RETURN(auto pool, Pool::open(options.threads));
  return try_io(std::move(pool), folder, words.direct);
}

/// The segment size of the files that are there; otherwise the one asked for, with room for one
/// block.
Bytes segment_of(const DiskOptions& options, const std::optional<Segments::Found>& found) {
  if (found && found->segment <= options.capacity) return found->segment;
  return options.segment;
}

Result<SegmentCount> segments_of(const DiskOptions& options, const Layout& layout,
                                 const std::optional<Segments::Found>& found) {
  const std::int64_t wanted = std::max(options.capacity / layout.segment_bytes(), std::int64_t{1});
  const std::int64_t most = std::numeric_limits<std::int32_t>::max() / layout.slots_per_segment();
  if (options.depth == 0 || options.queue == 0 || options.threads == 0 || wanted > most) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a disk tier needs a depth, a queue and threads of at least 1, and has 2^31 "
                      "slots at most");
  }
  SegmentCount count;
  count.most = static_cast<std::uint32_t>(wanted);
  const bool same = found && found->segment == layout.segment_bytes();
  count.wanted = !options.on_demand ? count.most : same ? std::min(count.most, found->count) : 1;
  count.floor = options.floor;
  return count;
}

}  // namespace

Result<std::unique_ptr<DiskTier>> DiskTier::open(const DiskOptions& options,
                                                 std::shared_ptr<const Clock> clock) {
  const NoFileSizeSignal no_signal;
  KVD_TRY(Layout::make(options.shape, options.segment));
  KVD_ASSIGN_OR_RETURN(Folder folder, Folder::open(options.folder));
  const auto found = Segments::find(folder, options.shape);
  KVD_ASSIGN_OR_RETURN(Layout layout, Layout::make(options.shape, segment_of(options, found)));
  KVD_ASSIGN_OR_RETURN(const SegmentCount count, segments_of(options, layout, found));
  DiskStatus words;
  words.direct = choose_direct(options, folder, layout, words);
  KVD_ASSIGN_OR_RETURN(Segments segments, Segments::open(folder, layout, count, words.direct));
  words.segments = segments.count();
  words.segments_reason = segments.reason();
  KVD_ASSIGN_OR_RETURN(std::unique_ptr<Io> io, choose_io(options, folder, words));
  words.io = io->name();
  if (options.wrap) io = options.wrap(std::move(io));
  KVD_ASSIGN_OR_RETURN(EventFd wake, EventFd::make());
  KVD_ASSIGN_OR_RETURN(EventFd done, EventFd::make());
  auto index = take_checkpoint(folder, layout, segments.count() * layout.slots_per_segment());
  try {
    auto worker = std::make_unique<Worker>(
        WorkerParts{std::move(folder), layout, std::move(segments), std::move(io), std::move(clock),
                    options.sum, options.floor, options.depth, options.queue},
        std::move(wake), std::move(done));
    std::unique_ptr<DiskTier> tier(new DiskTier(std::move(worker), std::move(words)));
    if (index.ok()) tier->index_ = std::move(*index);
    return tier;
  } catch (const std::system_error&) {
    return make_error(ErrorCode::kUnavailable, "no thread for disk I/O: raise RLIMIT_NPROC");
  }
}

DiskTier::DiskTier(std::unique_ptr<Worker> worker, DiskStatus words)
    : owned_(std::move(worker)),
      worker_(owned_.get()),
      last_generation_(worker_->parts().folder.opens() << kGenerationBits),
      cleared_(read_cleared(worker_->parts().folder)
                   .value_or(SlotGeneration(last_generation_.load()))
                   .value),
      words_(std::move(words)) {
  // If the file `lock` is lost the count begins anew.
  last_generation_ = std::max(last_generation_.load(), cleared_.load());
}

DiskTier::~DiskTier() { close(kCloseTime, std::nullopt); }

const Layout& DiskTier::layout() const { return worker_->parts().layout; }

std::uint32_t DiskTier::slots() const {
  return worker_->parts().segments.count() * layout().slots_per_segment();
}

Status DiskTier::check(std::uint32_t first_group, std::size_t groups, Nanoseconds patience,
                       DiskSlot slot) const {
  const std::uint32_t all = layout().shape().groups;
  if (slot.value >= slots()) {
    return make_error(ErrorCode::kInvalidArgument, "the disk tier has no such slot");
  }
  if (groups == 0 || first_group >= all || groups > all - first_group) {
    return make_error(ErrorCode::kInvalidArgument, "the class has no such layer groups");
  }
  if (patience <= Nanoseconds{0}) {
    return make_error(ErrorCode::kInvalidArgument, "a request needs time: give it some");
  }
  return {};
}

Status DiskTier::check_memory(const void* memory, std::size_t size) const {
  if (size != layout().shape().group_bytes.size()) {
    return make_error(ErrorCode::kInvalidArgument, "memory is given by whole layer groups");
  }
  if (words_.direct && reinterpret_cast<std::uintptr_t>(memory) % kSector.size() != 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "direct I/O needs memory from a multiple of 4 KiB");
  }
  return {};
}

Status DiskTier::load(Load load) {
  KVD_TRY(check(load.first_group, load.groups.size(), load.patience, load.slot));
  for (const auto& group : load.groups) KVD_TRY(check_memory(group.data(), group.size()));
  const Nanoseconds patience = load.patience;
  return worker_->add(std::move(load), patience);
}

Result<SlotGeneration> DiskTier::store(Store store) {
  KVD_TRY(check(0, store.groups.size(), store.patience, store.slot));
  if (store.groups.size() != layout().shape().groups) {
    return make_error(ErrorCode::kInvalidArgument, "a block is stored with all its layer groups");
  }
  for (const auto& group : store.groups) KVD_TRY(check_memory(group.data(), group.size()));
  const Nanoseconds patience = store.patience;
  const SlotGeneration generation(++last_generation_);
  KVD_TRY(worker_->add(NumberedStore{std::move(store), generation}, patience));
  return generation;
}

Status DiskTier::scan(Scan scan) {
  if (scan.count == 0 || scan.count > kMaxScan || scan.first.value >= slots() ||
      scan.count > slots() - scan.first.value || scan.patience <= Nanoseconds{0}) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a scan takes 1 to " + std::to_string(kMaxScan) + " slots, and time");
  }
  return worker_->add(scan, scan.patience);
}

void DiskTier::poll(std::vector<Completion>& completions) {
  const auto before = static_cast<std::ptrdiff_t>(completions.size());
  worker_->poll(completions);
  std::for_each(completions.begin() + before, completions.end(),
                [this](Completion& completion) { forget_cleared(completion.found); });
}

void DiskTier::forget_cleared(std::vector<FoundBlock>& blocks) const {
  const std::uint64_t last = cleared_;
  std::erase_if(blocks, [&](const FoundBlock& block) { return block.generation.value <= last; });
}

Status DiskTier::keep_cleared() const {
  return write_cleared(worker_->parts().folder, SlotGeneration(cleared_));
}

int DiskTier::completion_fd() const { return worker_->completion_fd(); }

void DiskTier::add_slab(std::span<std::byte> slab) {
  const Status added = worker_->parts().io->add_slab(slab);
  const std::lock_guard lock(words_mutex_);
  if (added.ok()) {
    ++words_.registered_slabs;
  } else {
    words_.registered_reason = added.error().message;
  }
}

void DiskTier::remove_slab(std::span<std::byte> slab) {
  const bool removed = worker_->parts().io->remove_slab(slab);
  const std::lock_guard lock(words_mutex_);
  if (removed) --words_.registered_slabs;
}

std::uint32_t DiskTier::resize(Bytes bytes) {
  const NoFileSizeSignal no_signal;
  const WorkerParts& parts = worker_->parts();
  SegmentCount count;
  count.wanted = static_cast<std::uint32_t>(std::max(bytes / grain(), std::int64_t{1}));
  count.floor = parts.floor;
  return parts.segments.resize(parts.folder, parts.layout, count, words_.direct) *
         layout().slots_per_segment();
}

std::optional<std::vector<FoundBlock>> DiskTier::take_index() {
  if (index_) forget_cleared(*index_);
  return std::exchange(index_, std::nullopt);
}

DiskTier::Closed DiskTier::close(Nanoseconds patience,
                                 std::optional<std::vector<FoundBlock>> index) {
  if (closed_) return {};
  closed_ = true;
  const bool with_checkpoint = index.has_value();
  worker_->close(with_checkpoint ? std::move(*index) : std::vector<FoundBlock>(), with_checkpoint);
  if (worker_->wait_ended(patience)) return {{}, worker_->checkpoint_written()};
  Closed closed{worker_->desk().held(), make_error(ErrorCode::kDeadlineExceeded,
                                                   "the disk does not answer: no index "
                                                   "was written, the next start scans")};
  worker_->abandon();
  keep_for_ever(std::move(owned_));
  return closed;
}

DiskStatus DiskTier::status() const {
  DiskStatus status;
  {
    const std::lock_guard lock(words_mutex_);
    status = words_;
  }
  worker_->desk().count(status);
  return status;
}

}  // namespace kvd::disk
