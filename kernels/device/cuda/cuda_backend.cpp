#include "kernels/device/cuda/cuda_backend.hpp"

#include <algorithm>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "kernels/device/cuda/driver/health.hpp"
#include "kernels/device/cuda/engine.hpp"
#include "kernels/device/cuda/memory/slabs.hpp"
#include "kernels/device/host/completion_box.hpp"
#include "kernels/device/host/page_facts.hpp"

namespace kvd::kernels {
namespace {

using cuda::Engine;
using cuda::ScopedCurrent;

Status check_config(const CudaConfig& config) {
  if (config.burst > Bytes(0) && config.burst_time >= Nanoseconds(0) &&
      config.stall_limit > Nanoseconds(0) && config.stop_limit >= Nanoseconds(0)) {
    return {};
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "the CUDA backend needs a burst and a stall limit");
}

// Below `least` a copy's own overhead counts for more than the bytes it moves.
cuda::BurstRule burst_rule(const CudaConfig& config, const cuda::Capabilities& capabilities) {
  const bool by_cpu =
      config.burst_order == cuda::BurstOrder::kGated && !capabilities.stream_memory_operations;
  return {config.burst_time, std::min(kKiB * 256, config.burst), config.burst,
          by_cpu ? cuda::BurstOrder::kSeen : config.burst_order};
}

/// Settled once, at the start.
struct DramChoice {
  std::optional<unsigned> node;  ///< node of NumaSlabs; none: slabs are memfds
  std::string fallback;          ///< why NumaSlabs cannot be used where they would be better
  Bytes granularity = kHugePage;
};

Result<DramChoice> choose_dram(const CudaConfig& config, const cuda::Driver& driver,
                               const cuda::Capabilities& capabilities) {
  DramChoice choice;
  if (config.dram == DramKind::kMemfd) return choice;
  const Result<unsigned> node = cuda::probe_host_numa(driver, capabilities, config.numa_node);
  if (!node.ok()) {
    if (config.dram == DramKind::kHostNuma) return node.error();
    choice.fallback = node.error().message;
    return choice;
  }
  choice.node = *node;
  KVD_ASSIGN_OR_RETURN(const Bytes grain, cuda::granularity(driver, cuda::Place::on_node(*node)));
  choice.granularity = std::max(choice.granularity, grain);
  return choice;
}

/// Memory that a stray copy may still touch is never given to anyone else.
template <class Owner>
void keep_for_ever(std::unique_ptr<Owner> owner) {
  static auto* const kKept = new std::vector<std::unique_ptr<Owner>>();
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  kKept->push_back(std::move(owner));
}

}  // namespace

/// The members stand in the order in which they depend on each other. They are kept for ever if
/// copies did not visibly end.
struct CudaBackend::Parts {
  Parts(CudaConfig configuration, const Clock& time, const cuda::Driver& entries,
        cuda::Device chosen, const cuda::Capabilities& able, Bytes grain, DramChoice dram_choice,
        UniqueFd event)
      : config(std::move(configuration)),
        clock(time),
        driver(entries),
        device(std::move(chosen)),
        capabilities(able),
        granularity(grain),
        dram_kind(std::move(dram_choice)),
        health(entries),
        finished(std::move(event)) {}

  const CudaConfig config;
  const Clock& clock;
  const cuda::Driver& driver;
  const cuda::Device device;
  const cuda::Capabilities capabilities;
  const Bytes granularity;
  const DramChoice dram_kind;
  cuda::Health health;
  CompletionBox finished;

  std::mutex start_mutex;  // guards the creation of the engine
  std::unique_ptr<Engine> engine;

  std::mutex slab_mutex;  // guards the slabs and their number; never held while the driver works
  std::unordered_map<SlabHandle, cuda::HbmSlab> hbm;
  std::unordered_map<SlabHandle, cuda::DramSlab> dram;
  std::unordered_map<SlabHandle, cuda::NumaSlab> numa;
  std::uint64_t last_handle = 0;

  template <class Memory>
  std::pair<SlabHandle, Memory*> keep(std::unordered_map<SlabHandle, Memory>& slabs,
                                      Memory memory) {
    const std::lock_guard lock(slab_mutex);
    const SlabHandle handle(++last_handle);
    return {handle, &slabs.emplace(handle, std::move(memory)).first->second};
  }
  /// The removed slab is returned, so that its memory ends outside the lock.
  template <class Memory>
  auto take(std::unordered_map<SlabHandle, Memory>& slabs, SlabHandle handle) {
    const std::lock_guard lock(slab_mutex);
    return slabs.extract(handle);
  }

  // The engine, which is made when it is first needed.
  Result<Engine*> need_engine() {
    const std::lock_guard lock(start_mutex);
    KVD_TRY(health.status());
    if (engine) return engine.get();
    KVD_ASSIGN_OR_RETURN(
        engine,
        Engine::start({driver, device, capabilities, clock, health, finished, granularity,
                       config.copies, burst_rule(config, capabilities), config.stall_limit}));
    return engine.get();
  }

  using Fill = std::function<Status(const cuda::HbmSlab&)>;

  // Makes a slab that is zeroed, and then filled by `fill`.
  Result<Slab> create_hbm(Engine& running, Bytes size, const Fill& fill = {}) {
    KVD_ASSIGN_OR_RETURN(
        cuda::HbmSlab slab,
        cuda::HbmSlab::create(running.context(), size, granularity, capabilities.gpu_direct_rdma));
    KVD_TRY(slab.export_once());
    const auto [handle, made] = keep(hbm, std::move(slab));
    Status written = running.zero(*made);
    if (written.ok() && fill) written = fill(*made);
    if (written.ok()) return Slab{handle, Tier::kHbm, size, made->address(), PageKind::kDevice};
    if (!health.lost()) take(hbm, handle);  // otherwise bytes may still arrive
    return written.error();
  }

  // Looks at the earlier memory first: where it is of no use, no new memory is made.
  Result<Slab> copy_hbm(Engine& running, Bytes size, const UniqueFd& memory,
                        std::span<const SlabExtent> extents) {
    KVD_ASSIGN_OR_RETURN(cuda::HbmSlab imported,
                         cuda::HbmSlab::import(running.context(), memory.get(), size, granularity));
    auto old = std::make_unique<cuda::HbmSlab>(std::move(imported));
    const Fill fill = [&](const cuda::HbmSlab& made) { return running.copy(made, *old, extents); };
    Result<Slab> slab = create_hbm(running, size, fill);
    if (health.lost()) keep_for_ever(std::move(old));  // it may still be read
    return slab;
  }

  Result<Slab> create_numa(const Engine& running, Bytes size) {
    KVD_TRY(config.may_take(size));
    KVD_ASSIGN_OR_RETURN(
        cuda::NumaSlab slab,
        cuda::NumaSlab::create(running.context(), size, dram_kind.granularity, *dram_kind.node));
    const auto [handle, made] = keep(numa, std::move(slab));
    return Slab{handle, Tier::kDram, size, made->address(), PageKind::kDevice};
  }

  [[nodiscard]] HostMemoryRequest dram_request(Bytes size) const {
    return {"kvd-dram",
            size,
            config.pages,
            config.numa_node,
            populate_threads(config.populate_threads),
            config.may_take};
  }

  Slab keep_dram(cuda::DramSlab slab, Bytes size) {
    const auto [handle, made] = keep(dram, std::move(slab));
    return {handle, Tier::kDram, size, made->address(), made->pages()};
  }

  Result<Slab> create_dram(const Engine& running, Bytes size) {
    if (dram_kind.node) return create_numa(running, size);
    KVD_ASSIGN_OR_RETURN(cuda::DramSlab slab,
                         cuda::DramSlab::create(driver, dram_request(size), capabilities));
    return keep_dram(std::move(slab), size);
  }

  Result<Slab> reopen_dram(Bytes size, UniqueFd memory, bool zeroed) {
    if (dram_kind.node) {
      return make_error(ErrorCode::kUnsupported, "memory of the driver is made anew at each start");
    }
    KVD_ASSIGN_OR_RETURN(cuda::DramSlab slab,
                         cuda::DramSlab::reopen(driver, dram_request(size), std::move(memory),
                                                zeroed, capabilities));
    return keep_dram(std::move(slab), size);
  }

  // False when something here may still be copied to or from.
  bool close() {
    if (!engine) return true;
    if (!engine->stop(config.stop_limit)) return false;
    const ScopedCurrent current(engine->context());
    hbm.clear();
    dram.clear();
    numa.clear();
    return true;
  }
};

Result<std::unique_ptr<CudaBackend>> CudaBackend::create(const CudaConfig& config,
                                                         const Clock& clock) {
  KVD_TRY(check_config(config));
  KVD_ASSIGN_OR_RETURN(const cuda::Driver* driver, cuda::Driver::load());
  KVD_ASSIGN_OR_RETURN(cuda::Device device, cuda::find_device(*driver, config.device));
  KVD_ASSIGN_OR_RETURN(const cuda::Capabilities capabilities,
                       cuda::check_capabilities(*driver, device));
  KVD_ASSIGN_OR_RETURN(const Bytes granularity,
                       cuda::granularity(*driver, {device.handle, capabilities.gpu_direct_rdma}));
  KVD_ASSIGN_OR_RETURN(DramChoice dram, choose_dram(config, *driver, capabilities));
  KVD_ASSIGN_OR_RETURN(UniqueFd event, CompletionBox::make_event());
  auto parts = std::make_unique<Parts>(config, clock, *driver, std::move(device), capabilities,
                                       granularity, std::move(dram), std::move(event));
  return std::unique_ptr<CudaBackend>(new CudaBackend(std::move(parts)));
}

CudaBackend::CudaBackend(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

CudaBackend::~CudaBackend() {
  if (!parts_->close()) keep_for_ever(std::move(parts_));
}

Bytes CudaBackend::granularity(Tier tier) const {
  return tier == Tier::kHbm ? parts_->granularity : parts_->dram_kind.granularity;
}

std::optional<Bytes> CudaBackend::memory(Tier tier) const {
  return tier == Tier::kHbm ? std::optional(parts_->device.memory) : std::nullopt;
}

int CudaBackend::completion_fd() const { return parts_->finished.fd(); }

std::optional<DeviceIdentity> CudaBackend::identity() const {
  return DeviceIdentity{parts_->device.uuid, parts_->device.name};
}

Status CudaBackend::health() const { return parts_->health.status(); }

Bytes CudaBackend::context_bytes() const {
  const std::lock_guard lock(parts_->start_mutex);
  return parts_->engine ? parts_->engine->context().used_at_start() : Bytes(0);
}

std::string CudaBackend::copies_fallback() const {
  const std::lock_guard lock(parts_->start_mutex);
  return parts_->engine ? parts_->engine->copies_fallback() : std::string();
}

const std::string& CudaBackend::dram_fallback() const { return parts_->dram_kind.fallback; }

Status CudaBackend::adopt_page(void* address, Bytes size) {
  if (!parts_->capabilities.stream_memory_operations) return {};  // the CPU writes fences
  KVD_ASSIGN_OR_RETURN(Engine * engine, parts_->need_engine());
  const ScopedCurrent current(engine->context());
  KVD_TRY(current.status());
  return engine->pages().adopt(parts_->driver, reinterpret_cast<std::uintptr_t>(address), size);
}

void CudaBackend::release_page(void* address, const std::shared_ptr<const void>& mapping) {
  if (!parts_->engine) return;
  parts_->engine->pages().release(reinterpret_cast<std::uintptr_t>(address), mapping);
}

Result<Slab> CudaBackend::do_create_slab(Tier tier, Bytes size) {
  KVD_ASSIGN_OR_RETURN(Engine * engine, parts_->need_engine());
  const ScopedCurrent current(engine->context());
  KVD_TRY(current.status());
  return tier == Tier::kHbm ? parts_->create_hbm(*engine, size)
                            : parts_->create_dram(*engine, size);
}

bool CudaBackend::reopens_slabs() const { return !parts_->dram_kind.node; }

Result<Slab> CudaBackend::do_reopen_slab(Tier tier, Bytes size, UniqueFd memory, bool zeroed) {
  if (tier == Tier::kHbm) {
    return make_error(ErrorCode::kUnsupported, "HBM of a GPU is not opened again in place");
  }
  KVD_ASSIGN_OR_RETURN(Engine * engine, parts_->need_engine());
  const ScopedCurrent current(engine->context());
  KVD_TRY(current.status());
  return parts_->reopen_dram(size, std::move(memory), zeroed);
}

Result<Slab> CudaBackend::do_copy_slab(Bytes size, const UniqueFd& memory,
                                       std::span<const SlabExtent> extents) {
  KVD_ASSIGN_OR_RETURN(Engine * engine, parts_->need_engine());
  const ScopedCurrent current(engine->context());
  KVD_TRY(current.status());
  return parts_->copy_hbm(*engine, size, memory, extents);
}

Status CudaBackend::do_read_slab(std::uintptr_t address, Bytes length, const Look& look) {
  if (book().holding(address).tier == Tier::kDram) {
    return SlabSource::do_read_slab(address, length, look);
  }
  KVD_ASSIGN_OR_RETURN(Engine * engine, parts_->need_engine());
  const ScopedCurrent current(engine->context());
  KVD_TRY(current.status());
  return engine->read(address, length, look);
}

Status CudaBackend::do_destroy_slab(SlabHandle handle) {
  // Its copies were reported as failed, which does not mean that they have ended, so it stays.
  if (parts_->health.lost()) return {};
  const ScopedCurrent current(parts_->engine->context());
  parts_->take(parts_->hbm, handle);
  parts_->take(parts_->dram, handle);
  parts_->take(parts_->numa, handle);
  return {};
}

Result<UniqueFd> CudaBackend::do_export_slab(SlabHandle handle) {
  KVD_TRY(parts_->health.status());
  const std::lock_guard lock(parts_->slab_mutex);
  if (const auto found = parts_->hbm.find(handle); found != parts_->hbm.end()) {
    return found->second.share();
  }
  const auto found = parts_->numa.find(handle);
  return found != parts_->numa.end() ? found->second.share() : parts_->dram.at(handle).share();
}

Status CudaBackend::do_submit(CopyBatch batch) {
  KVD_ASSIGN_OR_RETURN(Engine * engine, parts_->need_engine());
  std::vector<Engine::Place> places;
  places.reserve(batch.extents.size());
  Slab to, from;
  const auto moves_on = [this](Slab& slab, std::uintptr_t address) {
    if (address == 0 || address - slab.address < slab.size.size()) return false;
    slab = book().holding(address);
    return true;
  };
  std::uint32_t slabs = 0;
  for (const CopyExtent& extent : batch.extents) {
    const bool other_to = moves_on(to, extent.destination);
    if (moves_on(from, extent.source) || other_to) ++slabs;
    places.push_back({to.tier, slabs});
  }
  engine->submit(std::move(batch), places);
  return {};
}

void CudaBackend::do_poll(std::vector<Completion>& completed) { parts_->finished.drain(completed); }

}  // namespace kvd::kernels
