#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kernels/device/cuda/driver/driver.hpp"

namespace kvd::kernels::cuda {

using Uuid = std::array<std::uint8_t, 16>;

/// One device as the driver shows it. In MIG mode each visible instance is a device of its own,
/// with its own UUID and memory: kvd runs one pool in it and shares only inside it.
struct Device {
  CUdevice handle = 0;
  int ordinal = 0;
  Uuid uuid{};
  std::string name;
  std::string pci_bus_id;
  Bytes memory;

  /// Hexadecimal in groups, without the "GPU-" or "MIG-" that nvidia-smi puts before it.
  [[nodiscard]] std::string uuid_text() const;
};

/// Which device to use: by UUID where given, else by ordinal.
struct DeviceChoice {
  std::optional<Uuid> uuid;
  int ordinal = 0;
};

/// "" (the first), "2", or a UUID as nvidia-smi -L prints it, "GPU-" or "MIG-" optional.
/// Errors: InvalidArgument.
[[nodiscard]] Result<DeviceChoice> parse_device(std::string_view text);

/// Every device that this process may see (CUDA_VISIBLE_DEVICES, MIG), by ordinal. Errors:
/// DeviceError.
[[nodiscard]] Result<std::vector<Device>> list_devices(const Driver& driver);
/// Errors: NotFound with the list of the devices that exist.
[[nodiscard]] Result<Device> find_device(const Driver& driver, const DeviceChoice& choice);

/// The capabilities of the device that decide how kvd uses it. Numbers are those of the driver's
/// attributes.
struct Capabilities {
  bool gpu_direct_rdma = false;              ///< 110: handles may be made for RDMA and storage
  bool host_pages_are_device_pages = false;  ///< 100, Grace: registration does not pin pages
  bool stream_memory_operations = false;     ///< 122, and the entry points exist
  bool host_addresses = false;  ///< 91: registered memory is reachable by the host's address, too
  std::optional<unsigned> host_numa_node;  ///< 134: the node nearest to the device
  bool host_numa_memory = false;  ///< 141: HOST_NUMA allocations, if the driver is new enough
};

/// Errors: Unsupported naming the attribute or the compute mode that rules the device out.
[[nodiscard]] Result<Capabilities> check_capabilities(const Driver& driver, const Device& device);

}  // namespace kvd::kernels::cuda
