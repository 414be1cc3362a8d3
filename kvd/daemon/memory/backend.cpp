#include "kvd/daemon/memory/backend.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "ipc/vocabulary/hex.hpp"
#include "kernels/device/host/host_backend.hpp"
#include "kvd/daemon/base/log.hpp"
#include "kvd/daemon/config/memory_check.hpp"
#ifdef KVD_HAVE_CUDA
#include "kernels/device/cuda/cuda_backend.hpp"
#endif

namespace kvd::daemon {
namespace {

using Backend = std::shared_ptr<kernels::DeviceBackend>;

Result<Backend> host_backend(const Config& config, std::size_t, const Clock& clock) {
  kernels::HostConfig host;
  host.link_bandwidth = config.link_bandwidth;
  host.may_take = memory_gate(config.reserve);
  // An engine can punch holes into what it maps and take the hugetlb page that fell out. Our next
  // touch is a SIGBUS then. Engines of one domain are trusted not to do so; strangers are not.
  const bool strangers = config.domains.size() > 1 || config.domains.front().makes_domains();
  if (strangers) host.pages = kernels::PagePreference::kTransparentHuge;
  KVD_ASSIGN_OR_RETURN(auto backend, kernels::HostBackend::create(host, clock));
  return Backend(std::move(backend));
}

#ifdef KVD_HAVE_CUDA

// With bursts of this length nothing stands between two of them. Longer ones cost fewer calls, and
// gain nothing.
constexpr Nanoseconds kBurstInARow = std::chrono::microseconds(320);

Result<Backend> cuda_backend(const Config& config, std::size_t number, const Clock& clock) {
  kernels::CudaConfig cuda;
  auto device = kernels::cuda::parse_device(gpu_of(config, number));
  if (!device.ok()) {
    const std::string key = config.devices[number].gpu.empty()
                                ? "cuda.device"
                                : "device." + std::to_string(number) + ".gpu";
    return make_error(ErrorCode::kInvalidArgument, key + ": " + device.error().message);
  }
  cuda.device = *device;
  cuda.may_take = memory_gate(config.reserve);
  cuda.dram = config.cuda.dram == "host_numa" ? kernels::DramKind::kHostNuma
              : config.cuda.dram == "auto"    ? kernels::DramKind::kAuto
                                              : kernels::DramKind::kMemfd;
  if (config.cuda.burst > Nanoseconds(0)) {
    cuda.burst_time = config.cuda.burst;
  } else {
    cuda.burst_time = kBurstInARow;
    cuda.burst_order = kernels::cuda::BurstOrder::kInARow;
  }
  cuda.stall_limit = config.cuda.watchdog;
  KVD_ASSIGN_OR_RETURN(auto backend, kernels::CudaBackend::create(cuda, clock));
  if (!backend->dram_fallback().empty()) {
    log_info("cuda.dram auto: memfd, as there is " + backend->dram_fallback());
  }
  return Backend(std::move(backend));
}

Bytes context_bytes(const kernels::DeviceBackend& backend) {
  const auto* cuda = dynamic_cast<const kernels::CudaBackend*>(&backend);
  return cuda != nullptr ? cuda->context_bytes() : Bytes(0);
}

std::string copies_fallback(const kernels::DeviceBackend& backend) {
  const auto* cuda = dynamic_cast<const kernels::CudaBackend*>(&backend);
  return cuda != nullptr ? cuda->copies_fallback() : std::string();
}

#else

Result<Backend> cuda_backend(const Config&, std::size_t, const Clock&) {
  return make_error(ErrorCode::kUnsupported,
                    "this kvd is built without CUDA; build it where the headers of CUDA 13.0 or "
                    "newer are");
}

Bytes context_bytes(const kernels::DeviceBackend&) { return Bytes(0); }
std::string copies_fallback(const kernels::DeviceBackend&) { return {}; }

#endif

using Open = Result<Backend> (*)(const Config&, std::size_t device, const Clock&);

/// A GPU has several names, and its memory must not be lent twice. Host memory has no identity.
Status check_another_gpu(const Backends& others, const kernels::DeviceBackend& backend) {
  const auto gpu = backend.identity();
  for (std::size_t i = 0; gpu && i < others.size(); ++i) {
    if (others[i]->identity() != gpu) continue;
    return make_error(ErrorCode::kInvalidArgument,
                      "device." + std::to_string(others.size()) + ".gpu: is the GPU of device " +
                          std::to_string(i) + ", too; name another one");
  }
  return {};
}

Result<Backends> open_each(Open open, const Config& config, const Clock& clock) {
  Backends backends;
  for (std::size_t device = 0; device < config.devices.size(); ++device) {
    KVD_ASSIGN_OR_RETURN(auto backend, open(config, device, clock));
    KVD_TRY(check_another_gpu(backends, *backend));
    backends.push_back(std::move(backend));
  }
  return backends;
}

}  // namespace

Result<Backends> open_backends(Config& config, const Clock& clock) {
  if (config.backend == BackendChoice::kHost) return open_each(host_backend, config, clock);
  auto cuda = open_each(cuda_backend, config, clock);
  if (cuda.ok()) {
    config.backend = BackendChoice::kCuda;
    return cuda;
  }
  const Error& why = cuda.error();
  const bool is_required = config.backend == BackendChoice::kCuda;
  if (is_required || why.code == ErrorCode::kInvalidArgument) {
    return make_error(why.code, "backend cuda: " + why.message +
                                    (is_required ? "; or start with --backend host" : ""));
  }
  log_info("backend auto: host memory, as CUDA cannot be used: " + why.message);
  config.backend = BackendChoice::kHost;
  return open_each(host_backend, config, clock);
}

std::optional<admin::GpuInfo> gpu_facts(const kernels::DeviceBackend& backend, Bytes kept) {
  const auto identity = backend.identity();
  if (!identity) return std::nullopt;
  if (const std::string why = copies_fallback(backend); !why.empty()) {
    log_warning("copies go to the driver one by one, as " + why);
  }
  const Bytes context = std::max(Bytes(0), context_bytes(backend) - kept);
  return admin::GpuInfo{identity->name, uuid_text(identity->uuid), context};
}

}  // namespace kvd::daemon
