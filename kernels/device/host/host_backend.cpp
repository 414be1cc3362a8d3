#include "kernels/device/host/host_backend.hpp"

#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/device/host/page_facts.hpp"

namespace kvd::kernels {
namespace {

const HostTier& tier_of(const HostConfig& config, Tier tier) {
  return config.tiers.at(static_cast<std::size_t>(tier));
}

Status read_extent(const UniqueFd& from, std::uintptr_t to, const SlabExtent& extent) {
  for (std::int64_t at = extent.from.value, end = at + extent.length.value; at < end;) {
    void* place = reinterpret_cast<void*>(to + static_cast<std::uintptr_t>(at));
    const ssize_t size = ::pread(from.get(), place, static_cast<std::size_t>(end - at), at);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) {
      return make_error(ErrorCode::kDeviceError,
                        std::string("cannot read a slab of before: ") +
                            (size < 0 ? std::strerror(errno) : "it ends too early"));
    }
    at += size;
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<HostBackend>> HostBackend::create(const HostConfig& config,
                                                         const Clock& clock) {
  if (!std::isfinite(config.link_bandwidth.value) || config.link_bandwidth.value < 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "link.bandwidth must be a rate in bytes a second, or zero for no throttle");
  }
  KVD_ASSIGN_OR_RETURN(UniqueFd event, CompletionBox::make_event());
  return std::unique_ptr<HostBackend>(new HostBackend(config, clock, std::move(event)));
}

HostBackend::HostBackend(const HostConfig& config, const Clock& clock, UniqueFd event)
    : config_(config),
      finished_(std::move(event)),
      queues_{CopyQueue(Direction::kHostToDevice, clock, finished_),
              CopyQueue(Direction::kDeviceToHost, clock, finished_)} {
  set_link_bandwidth(config.link_bandwidth);
}

Bytes HostBackend::granularity(Tier) const { return kHugePage; }

void HostBackend::set_link_bandwidth(BytesPerSecond rate) {
  if (!std::isfinite(rate.value)) rate = {};
  for (CopyQueue& queue : queues_) queue.set_link_bandwidth(rate);
}

Result<HostMemory> HostBackend::make(Tier tier, Bytes size) const {
  const HostTier& place = tier_of(config_, tier);
  if (!place.enabled) {
    return make_error(ErrorCode::kUnsupported,
                      std::string("tier ") + name(tier) + " is switched off in the configuration");
  }
  return HostMemory::create(request(tier, size));
}

Result<Slab> HostBackend::do_create_slab(Tier tier, Bytes size) {
  KVD_ASSIGN_OR_RETURN(HostMemory memory, make(tier, size));
  return keep(tier, std::move(memory));
}

Result<Slab> HostBackend::do_reopen_slab(Tier tier, Bytes size, UniqueFd file, bool zeroed) {
  KVD_ASSIGN_OR_RETURN(HostMemory memory,
                       HostMemory::reopen(request(tier, size), std::move(file), zeroed));
  return keep(tier, std::move(memory));
}

Result<Slab> HostBackend::do_copy_slab(Bytes size, const UniqueFd& old,
                                       std::span<const SlabExtent> extents) {
  KVD_TRY(HostMemory::check(old, size));
  KVD_ASSIGN_OR_RETURN(HostMemory memory, make(Tier::kHbm, size));
  for (const SlabExtent& extent : extents) KVD_TRY(read_extent(old, memory.address(), extent));
  return keep(Tier::kHbm, std::move(memory));
}

HostMemoryRequest HostBackend::request(Tier tier, Bytes size) const {
  return {std::string("kvd-") + name(tier),
          size,
          config_.pages,
          tier_of(config_, tier).numa_node,
          populate_threads(config_.populate_threads),
          config_.may_take};
}

Slab HostBackend::keep(Tier tier, HostMemory memory) {
  const std::lock_guard lock(memory_mutex_);
  const SlabHandle handle(++last_handle_);
  const Slab slab{handle, tier, memory.size(), memory.address(), memory.pages()};
  memory_.emplace(handle, std::move(memory));
  return slab;
}

Status HostBackend::do_destroy_slab(SlabHandle handle) {
  (void)take(handle);
  return {};
}

Status HostBackend::do_discard_slab(SlabHandle handle) {
  take(handle).mapped().empty();
  return {};
}

HostBackend::Memory::node_type HostBackend::take(SlabHandle handle) {
  const std::lock_guard lock(memory_mutex_);
  return memory_.extract(handle);
}

Result<UniqueFd> HostBackend::do_export_slab(SlabHandle handle) {
  const std::lock_guard lock(memory_mutex_);
  return memory_.at(handle).share();
}

Status HostBackend::do_submit(CopyBatch batch) {
  auto& queue = queues_[static_cast<std::size_t>(batch.direction)];
  queue.submit(std::move(batch));
  return {};
}

}  // namespace kvd::kernels
