#include "kvd/core/cache/disk_classes.hpp"

#include <algorithm>
#include <chrono>

namespace kvd::core {

namespace {

/// The most classes open at a time: each has threads and descriptors.
constexpr std::int64_t kMostOpen = 16;
/// The most classes without files that are remembered for a domain: engines choose their
/// fingerprints.
constexpr std::ptrdiff_t kMostKnown = 64;
/// The most domains with blocks in the files of one class. More come up only where some have gone
/// for good.
constexpr std::size_t kMostDomains = 128;
/// The most slots that one event empties, and blocks that it learns of: the control thread has
/// others to serve.
constexpr std::size_t kMostSwept = 2048, kMostLearned = 2048;
constexpr Nanoseconds kFirstPause = std::chrono::seconds(1);
constexpr Nanoseconds kLongestPause = std::chrono::seconds(60);

using State = DiskClasses::State;

}  // namespace

void DiskClasses::meet(const Session& session, ClassId model_class, const DiskShape& shape) {
  if (!has_disk() && !context_.config.remote.name) return;
  const DomainId domain = session.info.domain;
  if (const auto [known, is_new] = domains_.try_emplace(domain); is_new) {
    known->second.name = session.info.domain_name;
    set_label(known->second);
  }
  if (!by_shape_.contains(shape)) {
    if (knows_too_many(domain)) return;
    const DiskId id = free_number();
    by_shape_.emplace(shape, id);
    disks_.emplace(id, Disk{.id = id,
                            .shape = shape,
                            .model = session.info.name,
                            .domain = domain,
                            .since = context_.now,
                            .opening = has_disk()});
  }
  const DiskId id = by_shape_.at(shape);
  Disk& disk = at(id);
  know(disk, model_class);
  disk.used = context_.now;
  const bool is_new = disk.engines.insert(session.id).second;
  if (is_new && disk.state == State::kNone) ask(disk);
}

// Forgets the class that has been unused longest and that nobody needs.
bool DiskClasses::knows_too_many(DomainId domain) {
  const auto is_bare = [&](const auto& entry) {
    return entry.second.domain == domain && entry.second.state == State::kNone &&
           entry.second.remote_under_way == 0;
  };
  if (std::count_if(disks_.begin(), disks_.end(), is_bare) < kMostKnown) return false;
  auto oldest = disks_.end();
  for (auto at = disks_.begin(); at != disks_.end(); ++at) {
    const bool spare = is_bare(*at) && at->second.engines.empty();
    if (spare && (oldest == disks_.end() || at->second.used < oldest->second.used)) oldest = at;
  }
  if (oldest == disks_.end()) return true;
  forget(oldest);
  return false;
}

DiskId DiskClasses::free_number() const {
  DiskId free(1);
  for (const auto& [id, disk] : disks_) {
    if (id != free) break;
    free = DiskId(id.value + 1);
  }
  return free;
}

// If a shape's class is forgotten, the shape gets another class from then on, and the old one is
// never used again.
void DiskClasses::know(Disk& disk, ClassId model_class) {
  const Fingerprint& fingerprint = disk.shape.fingerprint;
  if (disk.met_in != model_class) by_class_.erase({fingerprint, disk.met_in});
  disk.met_in = model_class;
  by_class_[{fingerprint, model_class}] = disk.id;
}

DiskClasses::Disks::iterator DiskClasses::forget(Disks::iterator at) {
  const Disk& disk = at->second;
  by_shape_.erase(disk.shape);
  const auto known = by_class_.find({disk.shape.fingerprint, disk.met_in});
  if (known != by_class_.end() && known->second == disk.id) by_class_.erase(known);
  return disks_.erase(at);
}

void DiskClasses::forget_unused(const std::set<DomainId>& attached) {
  std::set<DomainId> needed = attached;
  for (auto at = disks_.begin(); at != disks_.end();) {
    Disk& disk = at->second;
    if (disk.state == State::kNone && disk.engines.empty() && disk.tries.again <= context_.now &&
        disk.remote_under_way == 0) {
      at = forget(at);
      continue;
    }
    if (disk.domains.size() > kMostDomains) {
      std::erase_if(disk.domains, [&](DomainId domain) { return !attached.contains(domain); });
    }
    needed.insert(disk.domain);
    needed.insert(disk.domains.begin(), disk.domains.end());
    ++at;
  }
  std::erase_if(domains_, [&](const auto& entry) { return !needed.contains(entry.first); });
}

DiskClasses::Disk* DiskClasses::find(const store::KeySpace& space) {
  if (!context_.config.disk.name && !context_.config.remote.name) return nullptr;
  const auto found = by_class_.find({space.fingerprint, space.model_class});
  const bool met = found != by_class_.end() && domains_.contains(space.domain);
  if (!met) return nullptr;
  Disk& disk = at(found->second);
  const bool ends = disk.state == State::kEnding || disk.state == State::kClosing;
  return ends ? nullptr : &disk;
}

Digest DiskClasses::name(const store::KeySpace& space, const Digest& digest) const {
  return context_.config.disk.name(domains_.at(space.domain).name, space.fingerprint, digest);
}

void DiskClasses::set_label(Domain& domain) const {
  if (context_.config.remote.name) {
    domain.remote_label = context_.config.remote.name(domain.name, Fingerprint(), Digest());
  }
  if (!context_.config.disk.name) return;
  domain.label = context_.config.disk.name(domain.name, Fingerprint(), Digest());
}

// ---- files come ----

void DiskClasses::want(Disk& disk, DomainId domain) {
  disk.wanted = true;
  disk.used = context_.now;
  if (disk.state == State::kNone) {
    disk.domain = domain;
    ask(disk);
  }
  if (disk.state == State::kOpen) {
    disk.domains.insert(domain);
    grow(disk, domain);
  }
}

void DiskClasses::ask(Disk& disk) {
  if (!context_.config.disk.name || context_.now < disk.tries.again || !has_place(disk)) return;
  disk.state = State::kOpening;
  context_.emit(OpenDisk{disk.id, disk.shape, disk.wanted, disk.model});
}

bool DiskClasses::has_place(Disk& disk) {
  const auto open = std::count_if(disks_.begin(), disks_.end(), [](const auto& entry) {
    return entry.second.state != State::kNone;
  });
  if (open < kMostOpen) return true;
  const auto gives =
      store::disk_gives_way(uses(true), {disk.id.value, disk.domain, Bytes(1)}, Bytes(kMostOpen));
  if (gives) at(DiskId(*gives)).state = State::kEnding;
  if (!gives) refuse(disk, "16 models have files open that are in use");
  put_off(disk);
  return false;
}

// Files grow a little before all their slots are in use.
void DiskClasses::grow(Disk& disk, DomainId domain) {
  const bool may = disk.ready && disk.files.grain > Bytes(0) && !disk.files.resizing &&
                   context_.now >= disk.tries.again;
  if (!may) return;
  const std::size_t slots = disk.directory->slots();
  const std::size_t a_grain = slots / static_cast<std::size_t>(std::max(
                                          disk.files.bytes / disk.files.grain, std::int64_t{1}));
  if (disk.directory->free() > a_grain / 4 + 1) return;
  disk.domain = domain;
  disk.files.resizing = disk.files.growing = true;
  context_.emit(ResizeDisk{disk.id, disk.files.bytes + disk.files.grain});
}

// ---- files go ----

std::vector<store::DiskUse> DiskClasses::uses(bool places) const {
  std::vector<store::DiskUse> all;
  for (const auto& [id, disk] : disks_) {
    if (disk.state == State::kNone) continue;
    // Files that are in use keep their last grain.
    const bool spare = disk.files.grain > Bytes(0) &&
                       (disk.engines.empty() || disk.files.bytes >= disk.files.grain * 2);
    const bool free =
        disk.state == State::kOpen && disk.ready && !disk.files.resizing && (places || spare);
    const Bytes one(1);
    all.push_back({id.value, disk.domains, places ? one : disk.files.bytes,
                   places ? one : disk.files.grain, disk.used, disk.engines.empty(), free});
  }
  return all;
}

bool DiskClasses::push(const Disk& disk, DomainId domain, Bytes bytes) {
  const auto gives =
      store::disk_gives_way(uses(false), {disk.id.value, domain, bytes}, context_.config.disk.size);
  if (!gives) return false;
  Disk& other = at(DiskId(*gives));
  const Bytes left = other.files.bytes - other.files.grain;
  if (left < other.files.grain) {
    other.state = State::kEnding;
    return true;
  }
  const auto grains = static_cast<std::size_t>(other.files.bytes / other.files.grain);
  other.files.resizing = true;
  other.files.cut = left;
  other.directory->bound(
      static_cast<std::uint32_t>(other.directory->slots() / grains * (grains - 1)));
  cut(other);
  return true;
}

void DiskClasses::cut(Disk& disk) {
  if (disk.state != State::kOpen || !disk.directory->cut()) return;
  context_.emit(ResizeDisk{disk.id, *disk.files.cut});
  disk.files.cut.reset();
}

void DiskClasses::close(Disk& disk) {
  disk.state = State::kClosing;
  context_.emit(CloseDisk{disk.id});
}

void DiskClasses::clear() {
  for (auto& [id, disk] : disks_) {
    if (disk.directory) disk.directory->clear();
  }
  for (Told& told : told_) told = {{told.found.disk, {}, told.found.all}};
  sweeps_ = true;
}

void DiskClasses::sweep() {
  if (!sweeps_) return;
  sweeps_ = std::any_of(disks_.begin(), disks_.end(), [](auto& entry) {
    return entry.second.directory && entry.second.directory->sweep(kMostSwept);
  });
}

// ---- what the shell says ----

void DiskClasses::on_named(const DiskNamed& named) {
  context_.config.disk.name = named.name;
  for (auto& [id, domain] : domains_) set_label(domain);
  for (auto& [id, disk] : disks_) {
    if (disk.state == State::kNone && !disk.engines.empty()) ask(disk);
  }
}

void DiskClasses::on_opened(const DiskOpened& opened) {
  Disk& disk = at(opened.disk);
  const bool open = opened.slots > 0;
  disk.opening = open;  // until all that it holds is known
  disk.state = open ? State::kOpen : State::kNone;
  if (open) {
    disk.directory.emplace(opened.slots, context_.config.index.secret, &labels_);
    disk.files.bytes = opened.bytes, disk.files.grain = opened.grain;
    disk.domains.insert(disk.domain);
    return got(disk);
  }
  if (opened.lack == DiskOpened::Lack::kMade) {
    got(disk);
    if (disk.wanted) ask(disk);
    return;
  }
  // The grain is not known yet, so this asks for the smallest there may be.
  const bool room = opened.lack == DiskOpened::Lack::kRoom;
  if (room && !push(disk, disk.domain, Bytes(1))) {
    refuse(disk, "other models have as much right to the room of disk.size: raise it");
  }
  disk.refused = disk.refused || !room;
  put_off(disk);
}

void DiskClasses::on_resized(const DiskResized& resized) {
  Disk& disk = at(resized.disk);
  const bool grew = resized.bytes > disk.files.bytes, shrank = resized.bytes < disk.files.bytes;
  disk.files.resizing = disk.files.growing = false;
  if (disk.directory) disk.directory->grow(resized.slots);
  disk.files.bytes = resized.bytes;
  if (shrank) return try_all_again();
  if (grew) return got(disk);
  // Its own old blocks make way for what it writes meanwhile.
  (void)push(disk, disk.domain, disk.files.grain);
  put_off(disk);
}

void DiskClasses::on_closed(const DiskClosed& closed) {
  Disk& disk = at(closed.disk);
  disk.state = State::kNone;
  if (disk.directory) disk.directory->bound(0);  // so that the loss is told
  disk.directory.reset();
  disk.ready = disk.opening = disk.wanted = false;
  disk.files.bytes = Bytes(0);
  disk.domains.clear();
  disk.tries.again = TimePoint{0};
  std::erase_if(told_, [&](const Told& told) { return told.found.disk == closed.disk; });
  try_all_again();
}

// ---- what is in them ----

void DiskClasses::on_found(const DiskFound& found) {
  if (at(found.disk).directory) told_.push_back({found});
}

DiskClasses::Learned DiskClasses::learn() {
  Learned learned{!told_.empty(), {}};
  for (std::size_t left = kMostLearned; left > 0 && !told_.empty();) {
    Told& told = told_.front();
    Disk& disk = at(told.found.disk);
    const std::size_t end = std::min(told.known + left, told.found.blocks.size());
    left -= end - told.known;
    for (; told.known < end; ++told.known) {
      const DiskFound::Block& block = told.found.blocks[told.known];
      (void)disk.directory->restore(block.domain, block.name, {block.slot, block.generation});
    }
    if (end < told.found.blocks.size()) break;
    if (told.found.all) {
      disk.ready = true;
      disk.opening = false;
      learned.all.push_back(disk.id);
    }
    told_.pop_front();
  }
  return learned;
}

std::vector<DiskFound::Block> DiskClasses::blocks(DiskId id) const {
  std::vector<DiskFound::Block> all;
  const Disk& disk = disks_.at(id);
  if (!disk.directory) return all;
  all.reserve(disk.directory->used());
  disk.directory->each([&](const Digest& domain, const Digest& name, const auto& place) {
    all.push_back({place.slot, place.generation, domain, name});
  });
  for (const Told& told : told_) {
    if (told.found.disk != id) continue;
    all.insert(all.end(), told.found.blocks.begin() + told.known, told.found.blocks.end());
  }
  return all;
}

// ---- tries ----

void DiskClasses::refuse(Disk& disk, const char* why) {
  if (disk.refused) return;
  disk.refused = true;
  context_.note(Note::Level::kWarning, EngineId(),
                "cached blocks of '" + disk.model + "' do not go to disk: " + why);
}

void DiskClasses::put_off(Disk& disk) {
  disk.tries.pause = std::min(std::max(disk.tries.pause * 2, kFirstPause), kLongestPause);
  disk.tries.again = context_.now + disk.tries.pause;
}

void DiskClasses::got(Disk& disk) {
  disk.refused = false;
  disk.tries.pause = Nanoseconds(0);
  disk.tries.again = TimePoint{0};
}

void DiskClasses::try_all_again() {
  for (auto& [id, disk] : disks_) {
    if (disk.tries.again == TimePoint{0}) continue;
    disk.tries.again = context_.now;
    if (disk.state == State::kNone && !disk.engines.empty()) ask(disk);
  }
}

}  // namespace kvd::core
