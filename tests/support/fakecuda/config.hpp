#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/fakecuda/cuda_api.hpp"

namespace fakecuda {

/// The `call`-th call of an entry point fails with `code`; a sticky one also latches the context.
struct Fault {
  std::string entry;  // without a version suffix
  unsigned call = 0;  // counted from 1
  CUresult code = CUDA_ERROR_UNKNOWN;
  bool sticky = false;
};

/// The FAKECUDA_* environment; README.md describes each variable.
struct Config {
  std::size_t hbm_bytes = std::size_t{1} << 30;
  std::size_t granularity = std::size_t{2} << 20;
  std::uint64_t seed = 1;
  unsigned delay_us = 200;
  unsigned wait_limit_ms = 30'000;
  int devices = 1;
  int driver_version = CUDA_VERSION;
  int compute_capability = 90;
  CUresult init = CUDA_SUCCESS;
  bool stall_h2d = false;
  bool stall_d2h = false;
  std::size_t stall_after = 0;  // bytes of that direction
  bool strict = false;
  bool host_numa = true;
  bool stream_memory_operations = true;
  bool host_addresses = true;
  bool synchronous = false;
  std::size_t context_bytes = 0;
  unsigned export_us = 0;
  unsigned hardware_queues = 8;  // shared by all streams of a context
  unsigned time_slice_us = 0;    // 0: the GPU belongs to this process alone
  std::string report;
  std::vector<Fault> faults;
};

/// Reads the environment. A value it does not understand ends the process with its name: a typo
/// must not turn a fault test into one that tests nothing.
Config read_config();

/// The name without `_v2` and the like: faults and counts do not tell versions apart.
std::string base_name(const std::string& entry);

}  // namespace fakecuda
