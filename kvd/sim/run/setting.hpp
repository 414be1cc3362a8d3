#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "kvd/core/door/tuning.hpp"
#include "kvd/sim/engine/profile.hpp"
#include "kvd/sim/run/policy_names.hpp"
#include "kvd/sim/world/arrival.hpp"
#include "kvd/sim/world/result.hpp"

namespace kvd::sim {

/// One engine of a run.
struct EngineSetting {
  Profile profile;
  /// Engines of one domain share the whole pool; engines of different domains share it by
  /// `guarantee`.
  std::uint32_t domain = 1;
  /// HBM that the engine's domain always has; 0: none. Equal guarantees that add up to the pool are
  /// a static partition.
  Bytes guarantee;
  Bytes dram_guarantee{};  ///< the same of DRAM; 0: none
  /// An engine that places its blocks lends others like it the HBM that it does not use. It does
  /// not apply to stock, which has no kvd.
  bool elastic = false;
};

/// A disk for cached blocks.
struct DiskModel {
  Bytes size;
  double bytes_per_s = 3e9;
  Seconds latency{1e-4};
  std::uint32_t touches = 1;  ///< a block is written once it was stored or found this often
  /// The time from which the disk is slower, by a factor of `slow_times`.
  std::optional<Seconds> slow_from{};
  double slow_times = 10;
};

/// Everything that a run depends on: equal settings give equal results, byte for byte.
struct Setting {
  /// By Arrival::engine; the pool and link are those of the first.
  std::vector<EngineSetting> engines;
  NamedPolicy policy;
  core::Slo slo;  ///< goals of requests that bring none of their own
  Workload workload;
  /// Engines place their blocks themselves, as vLLM does, and ask kvd which requests to serve
  /// (placing_world.hpp). Memory is divided between them.
  bool engines_place = false;
  /// Engines take turns on one device instead of having one each.
  bool one_device = false;
  /// The most prompt tokens of an iteration, whatever the profile says: equal for all policies of
  /// one comparison.
  std::optional<std::int64_t> prefill_tokens;
  std::optional<Bytes> hbm;  ///< instead of the first profile's
  std::optional<Bytes> dram;
  std::optional<Bytes> b_xfer;  ///< instead of "auto"
  std::optional<double> alpha, beta_b, beta_f;
  /// Which request a placement policy pauses where it has to: by the paper's rule, or by another to
  /// compare with.
  enum class Victim : std::uint8_t { kPolicys, kShortest, kRandom } victim = Victim::kPolicys;
  /// Engines seat the shortest of the waiting requests (by their true length) instead of the first.
  bool shortest_first = false;
  /// The run ends at this time even if requests are open; none: it ends when all are done.
  std::optional<Seconds> until;
  /// Engines tell what their prompts begin with (Arrival::prefix), and find it again.
  bool prefixes = false;
  std::optional<DiskModel> disk;  ///< only with `prefixes`
  bool check = false;             ///< calls Controller::validate() after every event
  /// Called now and then with the number of requests that are done.
  std::function<void(std::size_t done, std::size_t all)> progress;
};

/// Plays the workload on the real Controller under a virtual clock. Errors: InvalidArgument for a
/// setting that cannot run (an empty workload, a profile that does not pass check(), an engine that
/// does not exist); OutOfMemory for a model of which nothing fits. A request that the Controller
/// refuses is recorded as refused, and the run goes on.
[[nodiscard]] Result<RunResult> run(const Setting& setting);

}  // namespace kvd::sim
