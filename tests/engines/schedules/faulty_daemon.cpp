#include "tests/engines/schedules/faulty_daemon.hpp"

#include <utility>

#include "kernels/device/host/host_backend.hpp"
#include "kvd/daemon/memory/backend.hpp"

namespace kvd {
namespace {

std::optional<kernels::FaultScript>& script() {
  static std::optional<kernels::FaultScript> current;
  return current;
}

}  // namespace

namespace test {

void script_faults(std::optional<kernels::FaultScript> wanted) { script() = std::move(wanted); }

}  // namespace test

namespace daemon {

Result<Backends> open_backends(Config& config, const Clock& clock) {
  kernels::HostConfig host;
  host.link_bandwidth = config.link_bandwidth;
  KVD_ASSIGN_OR_RETURN(std::unique_ptr<kernels::DeviceBackend> backend,
                       kernels::HostBackend::create(host, clock));
  if (script()) {
    KVD_ASSIGN_OR_RETURN(backend, kernels::FaultyBackend::create(std::move(backend), *script()));
  }
  return Backends{std::move(backend)};
}

std::optional<admin::GpuInfo> gpu_facts(const kernels::DeviceBackend&, Bytes) {
  return std::nullopt;
}

}  // namespace daemon
}  // namespace kvd
