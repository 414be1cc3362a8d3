#include "tests/gpu/experiments/experiments.hpp"

namespace kvd::gpu {

namespace {

constexpr Experiment kAll[] = {
    {"E1", "what the device can do", "102 and 103 are 1, the granularity is at most 2 MiB",
     Part::kBoth, 3, 30, capabilities},
    {"E15", "what a context costs", "less than 600 MiB", Part::kFirst, 2, 30, footprint},
    {"E16", "the CUDA suites on this driver", "the same tests pass as on the fake driver",
     Part::kFirst, 1, 10, suites},
    {"E7", "latency of ordering between processes",
     "a host slot wakes a stream within 10 us (median) and 50 us (p99)", Part::kFirst, 4, 40,
     ordering_latency},
    {"E5", "copies by method, size and direction; duplex rotation",
     "a batch reaches 85 % of the peak with segments of 64 KiB; rotation 0.95 of the duplex limit "
     "and four times copies one at a time",
     Part::kFirst, 15, 90, copy_matrix},
    {"E14", "burst size",
     "adds less than 100 us to an engine's small copy (p99) at kvd's default (100 us), with "
     "at least 90 % of the peak",
     Part::kFirst, 35, 60, burst_size},
    {"E6", "a neighbour's kernels beside kvd's copies",
     "its p99 step time grows by less than 5 % beside copies in both directions", Part::kFirst, 55,
     100, interference},
    {"E18", "what waits for a blocked stream", "every call ends once the stream is released",
     Part::kFirst, 12, 60, waiting_calls},
    {"E19", "kvd's fences beside a neighbour's kernels",
     "a fence is seen within 100 us (p99) of its copy, whatever runs", Part::kFirst, 20, 60,
     fences_beside_kernels},
    {"E20", "graph capture beside what kvd's threads do",
     "in the relaxed mode all but cuCtxSynchronize leave a capture alive", Part::kFirst, 5, 40,
     capture},
    {"E21", "batches of copies: overlap flag, cost, endurance",
     "no batch hangs and every byte is right", Part::kFirst, 15, 60, batches},
    {"E22", "errors of broken rules", "recorded, each beside the fake driver's", Part::kFirst, 2,
     30, broken_rules},
    {"E23", "device memory that registered and mapped memory takes", "recorded", Part::kSecond, 6,
     40, mapping_cost},
    {"E24", "rates from huge pages, small pages and another node", "recorded", Part::kSecond, 5, 60,
     page_kinds},
    {"E12", "pinning host memory",
     "less than 0.15 s a GB, a neighbour waits less than 300 ms at kvd's chunk", Part::kSecond, 45,
     120, pinning},
    {"E9", "foreign bytes in fresh memory, rate of scrubbing",
     "no foreign byte in ten rounds; a copy engine zeroes at least 50 GB/s", Part::kSecond, 10, 90,
     scrub},
    {"E2", "cost of virtual memory management, attach",
     "attach of 64 GiB in slabs of 256 MiB takes less than 500 ms", Part::kSecond, 10, 90,
     vmm_cost},
    {"E8", "a waiter whose daemon is dead",
     "a CPU store drains its stream within 1 ms and leaves no error", Part::kSecond, 3, 30,
     dead_waiter},
    {"E10", "an importer dies while it writes", "nothing changes once its pidfd is readable",
     Part::kSecond, 16, 60, importer_killed},
    {"E4", "only a descriptor survives", "imported again, its bytes are right", Part::kSecond, 4,
     30, only_a_descriptor},
    {"E17", "an imported handle exported again", "settles whether the daemon keeps descriptors",
     Part::kSecond, 3, 30, reexport},
    {"E13", "host memory as a VMM allocation",
     "works within 3 % of registered memory, or says that it does not", Part::kSecond, 5, 45,
     host_numa},
    {"E25", "several devices", "each is found again by its UUID", Part::kSecond, 3, 20,
     several_devices},
    {"E11", "a read-only importer", "its write ends it alone; it may grant itself more",
     Part::kSecond, 4, 30, read_only},
    {"E3", "the exporter is killed",
     "the importer sees no error and every byte intact while it watches", Part::kSecond, 20, 60,
     exporter_killed},
    {"X1", "two streams a direction as they are",
     "rotation of 64 KiB pieces reaches 0.78 of the duplex limit", Part::kAsked, 3, 20,
     streams_as_they_are},
    {"X3", "a gate on the device between bursts",
     "0.95 of the duplex limit in bursts of 100 us, and a copy of 256 KiB waits less than 110 us",
     Part::kAsked, 6, 30, gate_between_bursts},
    {"X4", "which size of an engine's copy waits for a time slice", "recorded", Part::kAsked, 4, 20,
     sizes_that_wait},
    {"X5", "huge pages, and copies in the order of their addresses", "recorded", Part::kAsked, 5,
     30, pages_and_order},
    {"X6", "small batches without an order between them", "1.5 times the rate", Part::kAsked, 3, 20,
     small_batches},
    {"X7", "a block whose layers are far apart as one strided copy", "52 GB/s each way",
     Part::kAsked, 5, 30, strided_blocks},
    {"X8", "kvd's copies both ways, for others to run beside", "recorded", Part::kAsked, 17, 30,
     full_rate},
};

}  // namespace

std::span<const Experiment> experiments() { return kAll; }

Outcome outcome_of(const Experiment& e, const std::string& reason) {
  return {e.id, e.title, e.criterion, State::kSkipped, reason, 0, {}, {}, {}};
}

}  // namespace kvd::gpu
