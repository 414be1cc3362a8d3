#include "kvd/core/disk_classes.hpp"

namespace kvd::core {

namespace {

/// Engines choose fingerprints, and each class has files of the whole size.
constexpr std::size_t kMostDisks = 4;

}  // namespace

void DiskClasses::meet(const Session& session, ClassId model_class, const DiskShape& shape) {
  if (!on()) return;
  domains_[session.info.domain] = session.info.domain_name;
  const auto [known, is_new] = by_class_.try_emplace({shape.fingerprint, model_class});
  if (!is_new) return;
  const auto [disk, opens] = by_shape_.try_emplace(shape);
  if (opens && disks_.size() < kMostDisks) {
    disk->second = DiskId(static_cast<std::uint32_t>(disks_.size() + 1));
    disks_.push_back({.id = disk->second, .shape = disk->first, .since = context_.now});
    context_.emit(OpenDisk{disk->second, disk->first});
  } else if (opens) {
    by_shape_.erase(disk);
    by_class_.erase(known);
    return;
  }
  known->second = disk->second;
}

DiskClasses::Disk* DiskClasses::find(const store::KeySpace& space) {
  const auto found = by_class_.find({space.fingerprint, space.model_class});
  const bool met = found != by_class_.end() && domains_.contains(space.domain);
  return met ? &at(found->second) : nullptr;
}

Digest DiskClasses::name(const store::KeySpace& space, const Digest& digest) const {
  return context_.config.disk.name(domains_.at(space.domain), space.fingerprint, digest);
}

Digest DiskClasses::label(DomainId domain) const {
  return context_.config.disk.name(domains_.at(domain), Fingerprint(), Digest());
}

void DiskClasses::on_opened(const DiskOpened& opened) {
  Disk& disk = at(opened.disk);
  disk.opening = opened.slots > 0;  // until all that it holds is known
  if (opened.slots > 0) disk.directory.emplace(opened.slots);
}

void DiskClasses::on_found(const DiskFound& found) {
  Disk& disk = at(found.disk);
  if (!disk.directory) return;
  for (const DiskFound::Block& block : found.blocks) {
    (void)disk.directory->restore(block.domain, block.name, {block.slot, block.generation});
  }
  disk.ready = disk.ready || found.all;
  disk.opening = !disk.ready;
}

}  // namespace kvd::core
