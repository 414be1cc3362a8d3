#include "kvd/daemon/memory/device.hpp"

#include <utility>
#include <vector>

#include "kvd/daemon/base/log.hpp"
#include "kvd/daemon/config/config_values.hpp"
#include "kvd/daemon/config/memory_check.hpp"
#include "kvd/daemon/config/needs.hpp"

namespace kvd::daemon {

namespace {

/// What backs most of a tier.
std::string page_kind(const mover::SlabStore& slabs, Tier tier) {
  using kernels::PageKind;
  PageKind most = PageKind::kSmall;
  for (const PageKind kind : {PageKind::kHugetlb, PageKind::kTransparentHuge, PageKind::kDevice}) {
    if (slabs.bytes_backed_by(tier, kind) > slabs.bytes_backed_by(tier, most)) most = kind;
  }
  return name(most);
}

/// Refuses pools that can never fit: pools of host memory must fit the machine, pools of a GPU the
/// GPU.
Status check_pools(const Config& config, const Backends& backends) {
  const bool host = config.backend == BackendChoice::kHost;
  KVD_ASSIGN_OR_RETURN(const MemoryRoom room, memory_room(config.reserve));
  KVD_TRY(check_memory(host_pools(config), memory_beside(config), room,
                       host ? "pool.hbm + pool.dram" : "pool.dram"));
  const Bytes hbm = config.slab_size() * std::int64_t{config.slabs(Tier::kHbm)};
  for (const auto& backend : backends) {
    const auto memory = backend->memory(Tier::kHbm);
    if (!memory || hbm <= *memory) continue;
    return make_error(ErrorCode::kOutOfMemory, "pool.hbm: " + human_size(hbm) +
                                                   " exceeds the GPU's memory (" +
                                                   human_size(*memory) + "); lower pool.hbm");
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Device>> Device::open(const Config& config, Backends backends,
                                             const Clock& clock, KeptMemory& kept) {
  std::unique_ptr<Device> device(new Device());
  device->backends_ = std::move(backends);
  // Automatic slabs are larger on CUDA, and guarantees count in whole slabs.
  const std::vector<std::string> found = faults(config);
  if (!found.empty()) return make_error(ErrorCode::kInvalidArgument, found.front());
  std::vector<Bytes> there;
  for (std::uint32_t i = 0; i < device->count(); ++i) there.push_back(kept.bytes(DeviceId(i)));
  KVD_TRY(device->open_pool(config, clock, kept));
  device->tell_pool(config, there);
  return device;
}

Device::~Device() {
  slabs_.reset();
  // DRAM belongs to the first backend, and others may still copy from it.
  while (!backends_.empty()) backends_.pop_back();
}

Status Device::health() const {
  for (const auto& backend : backends_) KVD_TRY(backend->health());
  return {};
}

std::uint64_t Device::missing() const {
  return slabs_->missing(Tier::kHbm).size() + slabs_->missing(Tier::kDram).size();
}

Status Device::open_pool(const Config& config, const Clock& clock, KeptMemory& kept) {
  const Bytes slab = config.slab_size();
  std::vector<mover::SlabStore::Device> hbm;
  std::vector<kernels::CopyQueues*> backends;
  for (const auto& backend : backends_) {
    hbm.push_back({backend.get(), {slab, config.slabs(Tier::kHbm)}});
    backends.push_back(backend.get());
  }
  const mover::SlabStore::Size dram{slab, config.slabs(Tier::kDram)};
  KVD_TRY(check_pools(config, backends_));
  TimePoint told = clock.now();
  const auto progress = [&](Bytes done, Bytes total) {
    if (clock.now() - told < std::chrono::seconds(1)) return;
    told = clock.now();
    log_info("populating the pool: " + human_size(done) + " of " + human_size(total));
  };
  const auto reopen = [&kept](kernels::SlabSource& backend, Tier tier, SlabIndex number) {
    return kept.reopen(backend, {tier, number});
  };
  KVD_ASSIGN_OR_RETURN(mover::SlabStore store,
                       mover::SlabStore::create(hbm, dram, progress, reopen));
  slabs_ = std::make_unique<mover::SlabStore>(std::move(store));
  if (missing() == std::uint64_t{config.all_slabs(Tier::kHbm)} + config.slabs(Tier::kDram)) {
    return make_error(
        ErrorCode::kWouldBlock,
        "not one slab fits yet: " + slabs_->shortage().error().message +
            "; engines of an earlier kvd may hold it: kvd-holder and systemd try again");
  }
  movers_ = std::make_unique<mover::Movers>(backends, *slabs_);
  return {};
}

void Device::tell_pool(const Config& config, const std::vector<Bytes>& kept) {
  for (std::size_t i = 0; i < backends_.size(); ++i) {
    const auto& gpu = gpus_.emplace_back(gpu_facts(*backends_[i], kept[i]));
    if (!gpu) continue;
    log_info("gpu: " + gpu->name + ", " + gpu->uuid + ", context at most " +
             human_size(gpu->context_bytes));
  }
  for (const Tier tier : {Tier::kHbm, Tier::kDram}) {
    std::string& pages = page_kinds_[static_cast<std::size_t>(tier)];
    pages = page_kind(*slabs_, tier);
    const bool each = tier == Tier::kHbm && count() > 1;
    log_info(std::string(name(tier)) + ": " + std::to_string(config.slabs(tier)) + " slabs of " +
             human_size(config.slab_size()) + " on " + pages + " pages" +
             (each ? ", on each of " + std::to_string(count()) + " devices" : ""));
  }
}

}  // namespace kvd::daemon
