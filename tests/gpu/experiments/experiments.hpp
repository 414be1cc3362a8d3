#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "ipc/vocabulary/result.hpp"
#include "tests/gpu/report.hpp"

namespace kvd::gpu {

/// What an experiment may know and where it says what it found.
struct Lab {
  Recorder out;
  bool fake = false;   ///< no real kernels, no real time
  bool quick = false;  ///< small sizes and short times; implied by `fake`
  std::string suites;  ///< file with the results of the test programs (E16); empty: none
};

/// In which of the two calls of nine minutes: the first settles what decides most. kAsked: in
/// neither, where it is named alone.
enum class Part : std::uint8_t { kFirst, kSecond, kBoth, kAsked };

/// One question to the hardware. Source: kvd; E1 to E17 are what the CUDA code takes for granted,
/// the other E what reading the documentation of the driver left open, X what copies could gain.
/// run() is called in a process of its own, which is ended after `deadline_s`; an error is a
/// failure. `need_s`: what it took on an H200, with a quarter more; it is not begun where less is
/// left.
struct Experiment {
  const char* id;
  const char* title;
  const char* criterion;
  Part part;
  int need_s;
  int deadline_s;
  Status (*run)(const Lab&);
};

/// All of them, in the order in which they run: by what their answer is worth; those that make the
/// driver log a fault come last.
[[nodiscard]] std::span<const Experiment> experiments();
/// An experiment that has not been run, and why.
[[nodiscard]] Outcome outcome_of(const Experiment& experiment, const std::string& reason);

Status capabilities(const Lab& lab);           // E1, memory_experiments.cpp
Status vmm_cost(const Lab& lab);               // E2
Status exporter_killed(const Lab& lab);        // E3, sharing_experiments.cpp
Status only_a_descriptor(const Lab& lab);      // E4
Status copy_matrix(const Lab& lab);            // E5, copy_experiments.cpp
Status interference(const Lab& lab);           // E6, neighbour_experiments.cpp
Status ordering_latency(const Lab& lab);       // E7, ordering_experiments.cpp
Status dead_waiter(const Lab& lab);            // E8
Status scrub(const Lab& lab);                  // E9, neighbour_experiments.cpp
Status importer_killed(const Lab& lab);        // E10
Status read_only(const Lab& lab);              // E11
Status pinning(const Lab& lab);                // E12, host_experiments.cpp
Status host_numa(const Lab& lab);              // E13
Status burst_size(const Lab& lab);             // E14, copy_experiments.cpp
Status footprint(const Lab& lab);              // E15, memory_experiments.cpp
Status suites(const Lab& lab);                 // E16, suites.cpp
Status reexport(const Lab& lab);               // E17, sharing_experiments.cpp
Status waiting_calls(const Lab& lab);          // E18, call_experiments.cpp
Status fences_beside_kernels(const Lab& lab);  // E19, fence_experiments.cpp
Status capture(const Lab& lab);                // E20, call_experiments.cpp
Status batches(const Lab& lab);                // E21, batch_experiments.cpp
Status broken_rules(const Lab& lab);           // E22, rule_experiments.cpp
Status mapping_cost(const Lab& lab);           // E23, page_experiments.cpp
Status page_kinds(const Lab& lab);             // E24
Status several_devices(const Lab& lab);        // E25
Status streams_as_they_are(const Lab& lab);    // X1, link_experiments.cpp
Status gate_between_bursts(const Lab& lab);    // X3
Status sizes_that_wait(const Lab& lab);        // X4
Status pages_and_order(const Lab& lab);        // X5
Status small_batches(const Lab& lab);          // X6
Status strided_blocks(const Lab& lab);         // X7
Status full_rate(const Lab& lab);              // X8

}  // namespace kvd::gpu
