#pragma once

#include <span>
#include <vector>

#include "planner/model/latency.hpp"

namespace kvd::planner {

/// The latest cuts, used to reject a plan without evaluating it: a move must come below every one
/// of them to be an improvement. The cut that rejected last is asked first.
/// Owner: one thread. Cost: some nanoseconds for most moves.
class CutPool {
 public:
  static constexpr std::size_t kCapacity = 48;

  void add(const PathCut& cut);
  /// The cuts' values at `load` become the base of above().
  void base(std::span<const double> load);

  struct Shift {
    std::size_t from;
    std::size_t to;
    double blocks;
  };
  /// Whether moving these blocks from the base leaves some cut above `limit`.
  [[nodiscard]] bool above(double limit, Shift a, Shift b = {0, 0, 0});

 private:
  std::vector<PathCut> cuts_;
  std::vector<double> base_;
  std::size_t next_ = 0;
  std::size_t last_ = 0;
};

}  // namespace kvd::planner
