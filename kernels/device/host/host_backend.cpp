#include "kernels/device/host/host_backend.hpp"

#include <cmath>
#include <utility>

#include "kernels/device/host/page_facts.hpp"

namespace kvd::kernels {
namespace {

const HostTier& tier_of(const HostConfig& config, Tier tier) {
  return config.tiers.at(static_cast<std::size_t>(tier));
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

Result<Slab> HostBackend::do_create_slab(Tier tier, Bytes size) {
  const HostTier& place = tier_of(config_, tier);
  if (!place.enabled) {
    return make_error(ErrorCode::kUnsupported,
                      std::string("tier ") + name(tier) + " is switched off in the configuration");
  }
  KVD_ASSIGN_OR_RETURN(HostMemory memory, HostMemory::create(request(tier, size)));
  return keep(tier, std::move(memory));
}

Result<Slab> HostBackend::do_reopen_slab(Bytes size, UniqueFd file, bool zeroed) {
  KVD_ASSIGN_OR_RETURN(HostMemory memory,
                       HostMemory::reopen(request(Tier::kDram, size), std::move(file), zeroed));
  return keep(Tier::kDram, std::move(memory));
}

HostMemoryRequest HostBackend::request(Tier tier, Bytes size) const {
  return {std::string("kvd-") + name(tier), size, config_.pages, tier_of(config_, tier).numa_node,
          populate_threads(config_.populate_threads)};
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
