#include "tests/gpu/experiments.hpp"

namespace kvd::gpu {

const std::vector<Experiment>& experiments() {
  static const std::vector<Experiment> kAll = {
      {"E1", "what the device can do", "102 and 103 are 1, the granularity is at most 2 MiB", 30,
       capabilities},
      {"E2", "cost of virtual memory management, attach",
       "attach of 64 GiB in slabs of 256 MiB takes less than 500 ms", 75, vmm_cost},
      {"E3", "the exporter is killed", "the importer sees no error and every byte intact for 60 s",
       100, exporter_killed},
      {"E4", "only a descriptor survives", "imported again, its bytes are right", 30,
       only_a_descriptor},
      {"E5", "copies by method, size and direction; duplex rotation",
       "a batch reaches 85 % of the peak with segments of 64 KiB; rotation 0.95 of the duplex "
       "limit "
       "and four times copies one at a time",
       75, copy_matrix},
      {"E6", "a neighbour's kernels beside kvd's copies",
       "its p99 step time grows by less than 5 % beside copies in both directions", 60,
       interference},
      {"E7", "latency of ordering between processes",
       "a host slot wakes a stream within 10 us (median) and 50 us (p99)", 30, ordering_latency},
      {"E8", "a waiter whose daemon is dead",
       "a CPU store drains its stream within 1 ms and leaves no error", 30, dead_waiter},
      {"E9", "foreign bytes in fresh memory, rate of scrubbing",
       "no foreign byte in ten rounds; a copy engine zeroes at least 50 GB/s", 60, scrub},
      {"E10", "an importer dies while it writes", "nothing changes once its pidfd is readable", 45,
       importer_killed},
      {"E11", "a read-only importer", "its write ends it alone; it may grant itself more", 30,
       read_only},
      {"E12", "pinning host memory",
       "less than 0.15 s a GB, a neighbour waits less than 300 ms at kvd's chunk", 90, pinning},
      {"E13", "host memory as a VMM allocation",
       "works within 3 % of registered memory, or says that it does not", 45, host_numa},
      {"E14", "burst size",
       "adds less than 100 us to an engine's small copy (p99) at 4 MiB, with "
       "at least 90 % of the peak",
       45, burst_size},
      {"E15", "what a context costs", "less than 600 MiB", 30, footprint},
      {"E16", "the CUDA suites on this driver", "the same tests pass as on the fake driver", 10,
       suites},
      {"E17", "an imported handle exported again", "settles whether the daemon keeps descriptors",
       30, reexport},
  };
  return kAll;
}

}  // namespace kvd::gpu
