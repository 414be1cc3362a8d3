#include "kvd/daemon/device.hpp"

#include <vector>

#include "kvd/daemon/backend.hpp"
#include "kvd/daemon/log.hpp"
#include "kvd/daemon/memory_check.hpp"

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

/// What of the pools is memory of the machine must fit into it; a GPU's answers for itself.
Status check_machine_memory(const Config& config) {
  const Bytes dram = config.slab_size() * config.slabs(Tier::kDram);
  if (config.backend == BackendChoice::kCuda) {
    return check_memory(dram, config.reserve, "", "pool.dram");
  }
  return check_memory(config.slab_size() * config.slabs(Tier::kHbm) + dram, config.reserve);
}

}  // namespace

Result<std::unique_ptr<Device>> Device::open(Config& config, const Clock& clock) {
  std::unique_ptr<Device> device(new Device());
  KVD_ASSIGN_OR_RETURN(device->backend_, open_backend(config, clock));
  KVD_TRY(device->take_copy_table(config.copy_table));
  // Automatic slabs are larger on CUDA, and guarantees count in whole ones.
  const std::vector<std::string> found = faults(config);
  if (!found.empty()) return make_error(ErrorCode::kInvalidArgument, found.front());
  KVD_TRY(device->open_pool(config, clock));
  device->tell_pool(config);
  return device;
}

Device::~Device() {
  slabs_.reset();
  backend_.reset();
}

Status Device::take_copy_table(const std::string& file) {
  if (file.empty()) return {};
  KVD_ASSIGN_OR_RETURN(const CopyTable table, read_copy_table(file));
  const auto gpu = backend_->identity();
  if (table.source == backend_->kind() && (!gpu || gpu->name == table.device)) {
    copy_ = table.sizes;
    return {};
  }
  log_warning("copy.table is not used: it was measured on " + table.source + " " + table.device +
              ", this backend is " + backend_->kind() + (gpu ? " " + gpu->name : "") +
              "; measure here: kvd-bench copy --matrix --out " + file);
  return {};
}

Status Device::open_pool(const Config& config, const Clock& clock) {
  const Bytes slab = config.slab_size();
  const mover::SlabStore::Size hbm{slab, config.slabs(Tier::kHbm)};
  const mover::SlabStore::Size dram{slab, config.slabs(Tier::kDram)};
  KVD_TRY(check_machine_memory(config));
  TimePoint told = clock.now();
  const auto progress = [&](Bytes done, Bytes total) {
    if (clock.now() - told < std::chrono::seconds(1)) return;
    told = clock.now();
    log_info("populating the pool: " + std::to_string(done.value >> 20) + " of " +
             std::to_string(total.value >> 20) + " MiB");
  };
  KVD_ASSIGN_OR_RETURN(mover::SlabStore store,
                       mover::SlabStore::create(*backend_, hbm, dram, progress));
  slabs_ = std::make_unique<mover::SlabStore>(std::move(store));
  mover_ = std::make_unique<mover::Mover>(*backend_, *slabs_);
  return {};
}

void Device::tell_pool(const Config& config) {
  gpu_ = gpu_facts(*backend_);
  if (gpu_) {
    log_info("gpu: " + gpu_->name + ", " + gpu_->uuid + ", context " +
             std::to_string(gpu_->context_bytes.value >> 20) + " MiB");
  }
  for (const Tier tier : {Tier::kHbm, Tier::kDram}) {
    std::string& pages = page_kinds_[static_cast<std::size_t>(tier)];
    pages = page_kind(*slabs_, tier);
    log_info(std::string(name(tier)) + ": " + std::to_string(config.slabs(tier)) + " slabs of " +
             std::to_string(config.slab_size().value >> 20) + " MiB on " + pages + " pages");
  }
}

}  // namespace kvd::daemon
