#include "tests/support/fakecuda/config.hpp"

#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string_view>

namespace fakecuda {
namespace {

constexpr const char* kQueues = "CUDA_DEVICE_MAX_CONNECTIONS";  // the real driver's variable

[[noreturn]] void refuse(const char* name, std::string_view value) {
  std::fprintf(stderr,
               "fakecuda: %s=%.*s is not understood, see tests/support/fakecuda/README.md\n", name,
               static_cast<int>(value.size()), value.data());
  ::_exit(2);  // without the report of a driver that never began
}

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

template <class T>
T number(const char* name, std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) refuse(name, text);
  return value;
}

template <class T>
void read(const char* name, T& into) {
  if (const auto text = variable(name); !text.empty()) into = number<T>(name, text);
}

std::vector<std::string> split(std::string_view text, char at) {
  std::vector<std::string> parts;
  std::istringstream stream{std::string(text)};
  for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
  return parts;
}

// ENTRY:N[:CODE] separated by commas.
void read_faults(const char* name, bool sticky, std::vector<Fault>& faults) {
  for (const std::string& item : split(variable(name), ',')) {
    const auto parts = split(item, ':');
    if (parts.size() < 2 || parts.size() > 3 || (sticky && parts.size() != 3)) refuse(name, item);
    Fault fault{base_name(parts[0]), number<unsigned>(name, parts[1]), CUDA_ERROR_UNKNOWN, sticky};
    if (parts.size() == 3) fault.code = static_cast<CUresult>(number<unsigned>(name, parts[2]));
    if (fault.call == 0 || fault.code == CUDA_SUCCESS) refuse(name, item);
    faults.push_back(std::move(fault));
  }
}

}  // namespace

std::string base_name(const std::string& entry) {
  const auto at = entry.rfind("_v");
  const bool versioned = at != std::string::npos && at + 3 == entry.size();
  return versioned ? entry.substr(0, at) : entry;
}

Config read_config() {
  Config config;
  read("FAKECUDA_HBM_BYTES", config.hbm_bytes);
  read("FAKECUDA_GRANULARITY", config.granularity);
  read("FAKECUDA_SEED", config.seed);
  read("FAKECUDA_DELAY_US", config.delay_us);
  read("FAKECUDA_WAIT_LIMIT_MS", config.wait_limit_ms);
  read("FAKECUDA_DEVICES", config.devices);
  read("FAKECUDA_DRIVER_VERSION", config.driver_version);
  read("FAKECUDA_COMPUTE_CAPABILITY", config.compute_capability);
  read("FAKECUDA_TIME_SLICE_US", config.time_slice_us);
  read("FAKECUDA_EXPORT_US", config.export_us);
  read(kQueues, config.hardware_queues);
  unsigned init = 0, strict = 0, host_numa = 1, memory_operations = 1, host_addresses = 1,
           synchronous = 0;
  read("FAKECUDA_INIT", init);
  read("FAKECUDA_STRICT", strict);
  read("FAKECUDA_HOST_NUMA", host_numa);
  read("FAKECUDA_CONTEXT_BYTES", config.context_bytes);
  read("FAKECUDA_SYNCHRONOUS", synchronous);
  config.synchronous = synchronous != 0;
  read("FAKECUDA_HOST_ADDRESSES", host_addresses);
  config.host_addresses = host_addresses != 0;
  read("FAKECUDA_STREAM_MEMORY_OPERATIONS", memory_operations);
  config.init = static_cast<CUresult>(init);
  config.strict = strict != 0;
  config.host_numa = host_numa != 0;
  config.stream_memory_operations = memory_operations != 0;
  config.report = variable("FAKECUDA_REPORT");
  const auto stall = variable("FAKECUDA_STALL");
  if (!stall.empty() && stall != "h2d" && stall != "d2h") refuse("FAKECUDA_STALL", stall);
  read("FAKECUDA_STALL_AFTER", config.stall_after);
  config.stall_h2d = stall == "h2d";
  config.stall_d2h = stall == "d2h";
  const bool power_of_two = (config.granularity & (config.granularity - 1)) == 0;
  if (config.granularity < 4096 || !power_of_two) {
    refuse("FAKECUDA_GRANULARITY", variable("FAKECUDA_GRANULARITY"));
  }
  if (config.hardware_queues < 1 || config.hardware_queues > 32) refuse(kQueues, variable(kQueues));
  if (config.devices < 0 || config.devices > 16) {
    refuse("FAKECUDA_DEVICES", variable("FAKECUDA_DEVICES"));
  }
  read_faults("FAKECUDA_FAIL", false, config.faults);
  read_faults("FAKECUDA_STICKY", true, config.faults);
  return config;
}

}  // namespace fakecuda
