#include "kernels/device/cuda/engine.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ipc/vocabulary/keep.hpp"
#include "kernels/device/host/page_facts.hpp"

namespace kvd::kernels::cuda {
namespace {

// A queue that has nothing to do stops within this time.
constexpr Nanoseconds kIdleStop = std::chrono::seconds(5);

// Appends `extent` as copies out of `size` bytes of zeros at `zeros`.
void append_scrub(std::vector<CopyExtent>& out, const CopyExtent& extent, std::uintptr_t zeros,
                  Bytes size) {
  for (Bytes done; done < extent.length;) {
    const Bytes length = std::min(size, extent.length - done);
    out.push_back({extent.destination + done.size(), zeros, length});
    done += length;
  }
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::start(const EngineWorld& world) {
  KVD_ASSIGN_OR_RETURN(PrimaryContext context, PrimaryContext::retain(world.driver, world.device));
  std::unique_ptr<Engine> engine(new Engine(world, std::move(context)));
  const Status opened = engine->open();
  if (opened.ok()) return engine;
  // Zeros that may still be written need their memory.
  if (!engine->stop(kIdleStop)) (void)engine.release();
  return opened.error();
}

Engine::Engine(const EngineWorld& world, PrimaryContext context)
    : world_(world), context_(std::move(context)) {}

Status Engine::open() {
  const ScopedCurrent current(context_);
  KVD_TRY(current.status());
  KVD_ASSIGN_OR_RETURN(Stream setup, Stream::create(world_.driver));
  setup_.emplace(std::move(setup));
  KVD_ASSIGN_OR_RETURN(HbmSlab zero_hbm,
                       HbmSlab::create(context_, world_.granularity, world_.granularity, false));
  zero_hbm_.emplace(std::move(zero_hbm));
  HostMemoryRequest request{"kvd-zeros", kHugePage, PagePreference::kSmall, {}, 1};
  KVD_ASSIGN_OR_RETURN(DramSlab zero_dram,
                       DramSlab::create(world_.driver, std::move(request), world_.capabilities));
  zero_dram_.emplace(std::move(zero_dram));
  KVD_TRY(try_copies());
  KVD_TRY(zero(*zero_hbm_));
  pages_.emplace(context_, world_.health);
  readback_.emplace(
      ReadbackWorld{world_.driver, world_.capabilities, world_.health, world_.stall_limit});
  const QueueWorld queue{context_,        world_.clock, world_.health, *pages_,
                         world_.finished, copies_.form, world_.burst,  world_.stall_limit};
  for (const Direction direction : {Direction::kHostToDevice, Direction::kDeviceToHost}) {
    KVD_ASSIGN_OR_RETURN(queues_[static_cast<std::size_t>(direction)],
                         CopyQueue::start(direction, queue));
  }
  return {};
}

// Tries copies on the memory that will hold the zeros, before it does.
Status Engine::try_copies() {
  auto settled =
      settle_copies(world_.copies, world_.capabilities,
                    {world_.driver, *setup_, *zero_hbm_, *zero_dram_, world_.stall_limit});
  if (!settled.ok()) {
    // The tried copies may still be under way.
    if (settled.error().code == ErrorCode::kDeviceError) world_.health.lose(settled.error());
    return settled.error();
  }
  copies_ = std::move(*settled);
  std::memset(reinterpret_cast<void*>(zero_dram_->address()), 0, kHugePage.size());
  return {};
}

// Ends the members in the order of dependence, in a context that must be current.
Engine::~Engine() {
  const ScopedCurrent current(context_);
  for (auto& queue : queues_) queue.reset();
  readback_.reset();
  pages_.reset();
  zero_dram_.reset();
  zero_hbm_.reset();
  setup_.reset();
}

// Goes piece by piece, so that it never keeps the copy engine for longer than a burst.
Status Engine::zero_by_copies(const HbmSlab& slab) {
  constexpr const char* kWhat = "zeroing device memory beside engines";
  const auto* zeros = reinterpret_cast<const void*>(zero_dram_->address());
  for (Bytes done; done < slab.size();) {
    const Bytes piece = std::min(kHugePage, slab.size() - done);
    const CUresult queued = world_.driver.memcpy_htod_async(slab.address() + done.size(), zeros,
                                                            piece.size(), setup_->get());
    KVD_TRY(world_.health.check(queued, kWhat));
    KVD_TRY(settle(kWhat));
    done += piece;
  }
  return {};
}

Status Engine::zero(const HbmSlab& slab) {
  if (pages_ && pages_->any()) return zero_by_copies(slab);
  const CUresult queued =
      world_.driver.memset_d8_async(slab.address(), 0, slab.size().size(), setup_->get());
  KVD_TRY(world_.health.check(queued, "zeroing device memory"));
  return settle("zeroing device memory");
}

Status Engine::settle(const char* what) {
  const CUresult done = setup_->drain(world_.stall_limit);
  Status status = world_.health.check(done, what);
  if (!status.ok()) world_.health.lose(status.error());
  return status;
}

Status Engine::copy(const HbmSlab& to, const HbmSlab& from, std::span<const SlabExtent> extents) {
  constexpr const char* kWhat = "copying device memory of an earlier process";
  CUresult queued = CUDA_SUCCESS;
  for (const SlabExtent& extent : extents) {
    queued = world_.driver.memcpy_async(to.address() + extent.from.size(),
                                        from.address() + extent.from.size(), extent.length.size(),
                                        setup_->get());
    if (queued != CUDA_SUCCESS) break;
  }
  // The copies before the refused one are under way.
  Status ended = settle(kWhat);
  KVD_TRY(world_.health.check(queued, kWhat));
  return ended;
}

void Engine::submit(CopyBatch batch, const std::vector<Place>& places) {
  std::vector<CopyExtent> extents;
  std::vector<std::uint32_t> slabs;
  extents.reserve(batch.extents.size());
  for (std::size_t i = 0; i < batch.extents.size(); ++i) {
    const CopyExtent& extent = batch.extents[i];
    if (extent.source != 0) {
      extents.push_back(extent);
    } else if (places[i].to == Tier::kHbm) {
      append_scrub(extents, extent, zero_dram_->address(), kHugePage);
    } else {
      append_scrub(extents, extent, zero_hbm_->address(), zero_hbm_->size());
    }
    slabs.resize(extents.size(), places[i].slabs);
  }
  batch.extents = std::move(extents);
  CopyQueue& queue = *queues_[static_cast<std::size_t>(batch.direction)];
  queue.submit(std::move(batch), std::move(slabs));
}

bool Engine::stop(Nanoseconds limit) {
  bool stopped = !world_.health.lost();
  for (auto& queue : queues_) {
    if (queue) stopped = queue->stop(limit) && stopped;
  }
  return stopped;
}

}  // namespace kvd::kernels::cuda
