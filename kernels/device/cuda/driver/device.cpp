#include "kernels/device/cuda/driver/device.hpp"

#include <charconv>
#include <cstring>

#include "ipc/vocabulary/hex.hpp"
#include "kernels/device/cuda/driver/error.hpp"

namespace kvd::kernels::cuda {
namespace {

Error bad_device(std::string_view text) {
  return make_error(ErrorCode::kInvalidArgument,
                    "\"" + std::string(text) +
                        "\" names no device: give its number, or its UUID "
                        "as nvidia-smi -L prints it");
}

// 32 hexadecimal digits, dashes ignored.
std::optional<Uuid> parse_uuid(std::string_view text) {
  std::string digits;
  for (const char c : text) {
    if (c != '-') digits += c;
  }
  Uuid uuid{};
  if (digits.size() != 2 * uuid.size()) return std::nullopt;
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    const char* start = digits.data() + 2 * i;
    const auto [end, error] = std::from_chars(start, start + 2, uuid[i], 16);
    if (error != std::errc() || end != start + 2) return std::nullopt;
  }
  return uuid;
}

Result<Device> describe(const Driver& driver, int ordinal) {
  Device device;
  device.ordinal = ordinal;
  KVD_TRY(check(driver, driver.device_get(&device.handle, ordinal), "opening a device"));
  CUuuid uuid{};
  KVD_TRY(check(driver, driver.device_get_uuid(&uuid, device.handle), "asking a device's UUID"));
  std::memcpy(device.uuid.data(), uuid.bytes, device.uuid.size());
  char text[256] = {};
  KVD_TRY(check(driver, driver.device_get_name(text, sizeof text - 1, device.handle),
                "asking a device's name"));
  device.name = text;
  KVD_TRY(check(driver, driver.device_get_pci_bus_id(text, sizeof text - 1, device.handle),
                "asking a device's bus id"));
  device.pci_bus_id = text;
  std::size_t bytes = 0;
  KVD_TRY(
      check(driver, driver.device_total_mem(&bytes, device.handle), "asking a device's memory"));
  device.memory = Bytes(static_cast<std::int64_t>(bytes));
  return device;
}

Result<int> attribute(const Driver& driver, const Device& device, CUdevice_attribute which) {
  int value = 0;
  KVD_TRY(
      check(driver, driver.device_get_attribute(&value, which, device.handle),
            "asking attribute " + std::to_string(static_cast<int>(which)) + " of " + device.name));
  return value;
}

// Older drivers name the attribute, but cannot share such memory with other processes.
constexpr int kHostNumaVersion = 12060;

struct Need {
  CUdevice_attribute attribute;
  const char* name;
};
constexpr Need kNeeds[] = {
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, "UNIFIED_ADDRESSING"},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
     "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
     "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED"},
};

Status check_compute_mode(const Driver& driver, const Device& device) {
  KVD_ASSIGN_OR_RETURN(const int mode, attribute(driver, device, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE));
  if (mode == CU_COMPUTEMODE_DEFAULT) return {};
  return make_error(ErrorCode::kUnsupported,
                    device.name + " is in compute mode " + std::to_string(mode) +
                        ", which keeps kvd and the engines from sharing it: nvidia-smi -i " +
                        device.pci_bus_id + " -c DEFAULT");
}

}  // namespace

std::string Device::uuid_text() const { return kvd::uuid_text(uuid); }

Result<DeviceChoice> parse_device(std::string_view text) {
  DeviceChoice choice;
  if (text.empty()) return choice;
  std::string_view uuid = text;
  if (uuid.starts_with("GPU-") || uuid.starts_with("MIG-")) uuid.remove_prefix(4);
  choice.uuid = parse_uuid(uuid);
  if (choice.uuid) return choice;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), choice.ordinal);
  if (error != std::errc() || end != text.data() + text.size() || choice.ordinal < 0) {
    return bad_device(text);
  }
  return choice;
}

Result<std::vector<Device>> list_devices(const Driver& driver) {
  int count = 0;
  KVD_TRY(check(driver, driver.device_get_count(&count), "counting devices"));
  std::vector<Device> devices;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    KVD_ASSIGN_OR_RETURN(Device device, describe(driver, ordinal));
    devices.push_back(std::move(device));
  }
  return devices;
}

Result<Device> find_device(const Driver& driver, const DeviceChoice& choice) {
  KVD_ASSIGN_OR_RETURN(const std::vector<Device> devices, list_devices(driver));
  std::string present;
  for (const Device& device : devices) {
    if (choice.uuid ? device.uuid == *choice.uuid : device.ordinal == choice.ordinal) {
      return device;
    }
    present +=
        "; " + std::to_string(device.ordinal) + " = " + device.name + " " + device.uuid_text();
  }
  return make_error(ErrorCode::kNotFound,
                    "the chosen device is not among the " + std::to_string(devices.size()) +
                        " visible ones (CUDA_VISIBLE_DEVICES decides)" + present);
}

Result<Capabilities> check_capabilities(const Driver& driver, const Device& device) {
  for (const Need& need : kNeeds) {
    KVD_ASSIGN_OR_RETURN(const int value, attribute(driver, device, need.attribute));
    if (value != 0) continue;
    return make_error(ErrorCode::kUnsupported,
                      device.name + " lacks " + need.name + " (" +
                          std::to_string(static_cast<int>(need.attribute)) +
                          "), which kvd needs: use --backend host");
  }
  KVD_TRY(check_compute_mode(driver, device));
  Capabilities found;
  const auto has = [&](CUdevice_attribute which) {
    const Result<int> value = attribute(driver, device, which);
    return value.ok() && *value != 0;  // an older driver does not know it: not there
  };
  found.gpu_direct_rdma = has(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
  found.host_pages_are_device_pages =
      has(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES);
  found.stream_memory_operations = driver.stream_write_value64 != nullptr &&
                                   has(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
  found.host_addresses = has(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
  const Result<int> node = attribute(driver, device, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
  if (node.ok() && *node >= 0) found.host_numa_node = static_cast<unsigned>(*node);
  found.host_numa_memory = driver.version() >= kHostNumaVersion &&
                           has(CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
  return found;
}

}  // namespace kvd::kernels::cuda
