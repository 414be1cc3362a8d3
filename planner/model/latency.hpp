#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "planner/model/seconds.hpp"

namespace kvd::planner {

inline constexpr std::size_t kMaxLayers = 1024;
/// More than any machine holds, but so few that sums over a batch stay exact.
inline constexpr Blocks kMaxBlocks{std::int64_t{1} << 40};

/// How fast one decode step computes and how fast the link feeds it.
/// A layer here is a layer group: the grain at which KV moves.
struct StepModel {
  /// Compute time of each layer, in order of execution.
  std::vector<Seconds> compute;
  /// Time the link needs for one block of one layer.
  Seconds per_block{0};
  /// Fixed cost of a transfer: it becomes eligible this long after the layer that frees its
  /// staging.
  Seconds per_transfer{0};

  [[nodiscard]] std::size_t layers() const { return compute.size(); }
};

/// A request's blocks per layer and the layers (1-based, ascending, distinct) that live in DRAM.
struct StreamedRequest {
  Blocks blocks;
  std::vector<std::int32_t> offloaded;
};

struct StepLatency {
  Seconds total{0};
  /// The wait for blocks before each layer.
  std::vector<Seconds> stalls;
};

/// Errors: InvalidArgument for no layers, more than kMaxLayers, or a time that is not above 0
/// (the fixed cost may be 0) and at most 1e9 s.
[[nodiscard]] Status check(const StepModel& model);
/// Errors: InvalidArgument for blocks out of 0..kMaxBlocks or layers out of order or range.
[[nodiscard]] Status check(const StepModel& model, const StreamedRequest& request);

/// T_batch when the link serves transfers earliest deadline first: the max-plus form of MODEL.md.
/// Source: kvd, after OrbitFlow sec. 4; MODEL.md "Step time" says why EDF.
/// Cost:   O(L^2 + transfers).
/// Preconditions: check() of the arguments.
[[nodiscard]] StepLatency edf_latency(const StepModel& model,
                                      std::span<const StreamedRequest> requests);

/// T_batch when all transfers in flight share the link evenly, as in the paper's text.
[[nodiscard]] StepLatency even_sharing_latency(const StepModel& model,
                                               std::span<const StreamedRequest> requests);

/// A linear lower bound of T over the loads of all patterns: T >= constant + sum slope[k] *
/// load[k].
struct PathCut {
  double constant = 0;
  std::vector<double> slope;
};

/// Evaluates T_batch over a fixed set of patterns: T depends on the batch only through
/// load[k] = the blocks per layer of all requests that use pattern k, and is convex in it.
/// Owner: one thread (scratch inside). Cost: 0.6 us at 32 layers, 4 us at 80, for any batch.
class PatternLatency {
 public:
  PatternLatency(const StepModel& model, std::span<const std::vector<std::int32_t>> patterns);

  [[nodiscard]] std::size_t patterns() const { return pattern_count_; }
  /// In seconds.
  [[nodiscard]] double evaluate(std::span<const double> load);
  /// The same, and the critical path as a bound for every load that sums to at most `max_load`.
  [[nodiscard]] double evaluate(std::span<const double> load, double max_load, PathCut& out);

 private:
  struct Arrival {
    std::uint32_t pattern;
    std::uint32_t release;  // layer before which the transfer starts (an index)
  };
  template <bool kTrace>
  [[nodiscard]] double play(std::span<const double> load);
  void trace(double max_load, PathCut& out) const;
  [[nodiscard]] std::int32_t transfers(std::size_t pattern, std::size_t release,
                                       std::size_t due) const;

  std::size_t layers_;
  std::size_t pattern_count_;
  double per_block_;
  double per_transfer_;
  std::vector<double> compute_;
  std::vector<std::vector<Arrival>> due_;        // by layer, from 1
  std::vector<std::vector<std::int32_t>> upto_;  // [pattern][layer]: offloaded layers <= layer
  std::vector<double> released_;                 // by release index, for what is due so far
  std::vector<double> ends_;           // ends_[l]: layer l is done; ends_[0]: the step starts
  std::vector<std::size_t> critical_;  // release index that holds layer l up; 0: none
};

}  // namespace kvd::planner
