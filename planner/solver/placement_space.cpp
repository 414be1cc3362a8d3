#include "planner/solver/placement_space.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

namespace kvd::planner {
namespace {

std::vector<std::vector<std::int32_t>> patterns_of(const PlacementProblem& problem) {
  std::vector<std::vector<std::int32_t>> patterns;
  for (const auto& candidate : problem.candidates) patterns.push_back(candidate.offloaded);
  return patterns;
}

// Drops rows that others imply, because another one weighs every pattern as much or more. A handful
// of a model's layers are left, and the first is the one that most patterns share.
void keep_binding(std::vector<MemoryRow>& rows) {
  const auto sum = [](const MemoryRow& row) {
    return std::accumulate(row.weight.begin(), row.weight.end(), 0.0);
  };
  std::stable_sort(rows.begin(), rows.end(),
                   [&](const MemoryRow& a, const MemoryRow& b) { return sum(a) > sum(b); });
  std::vector<MemoryRow> kept;
  for (auto& row : rows) {
    const bool implied = std::any_of(kept.begin(), kept.end(), [&row](const MemoryRow& other) {
      return std::equal(row.weight.begin(), row.weight.end(), other.weight.begin(),
                        std::less_equal<>());
    });
    if (!implied) kept.push_back(std::move(row));
  }
  rows = std::move(kept);
}

// Sums of whole numbers: only a fraction of one is rounding.
constexpr double kRounding = 1e-6;

}  // namespace

Status check(const PlacementProblem& problem) {
  KVD_TRY(check(problem.model));
  const auto invalid = [](const char* why) { return make_error(ErrorCode::kInvalidArgument, why); };
  if (problem.blocks.empty()) return invalid("a batch has at least one request");
  if (problem.candidates.empty()) return invalid("there must be at least one candidate");
  if (problem.capacity < Blocks{0}) return invalid("capacity must not be negative");
  for (const auto& candidate : problem.candidates) {
    KVD_TRY(check(problem.model, {Blocks{0}, candidate.offloaded}));
  }
  for (const auto blocks : problem.blocks) KVD_TRY(check(problem.model, {blocks, {}}));
  return {};
}

PlacementSpace::PlacementSpace(const PlacementProblem& problem)
    : order_(problem.blocks.size()),
      layers_(static_cast<double>(problem.model.layers())),
      capacity_(static_cast<double>(problem.capacity.value)),
      latency_(problem.model, patterns_of(problem)) {
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  std::stable_sort(order_.begin(), order_.end(), [&problem](std::size_t a, std::size_t b) {
    return problem.blocks[a] > problem.blocks[b];
  });
  for (const auto time : problem.model.compute) compute_ += time.count();
  for (const auto& candidate : problem.candidates) {
    streamed_.push_back(static_cast<double>(candidate.offloaded.size()));
    open_.push_back(problem.open_blocks ? streamed_.back() : 0.0);
  }
  for (const auto index : order_) {
    blocks_.push_back(static_cast<double>(problem.blocks[index].value));
    total_ += blocks_.back();
    const auto now = problem.current.empty() ? std::nullopt : problem.current[index];
    current_.push_back(now.value_or(patterns()));
    has_current_ = has_current_ || now;
  }
  build_memory(problem);
}

void PlacementSpace::build_memory(const PlacementProblem& problem) {
  std::vector<double> strict;
  for (const double n : streamed_) strict.push_back(layers_ - n + (n > 0 ? 1 : 0));
  if (problem.buffer == BufferRule::kStrict) {
    memory_ = {{strict}};
  } else {
    // The largest need of one layer is a maximum, hence one row for each layer.
    for (std::size_t l = 0; l < problem.model.layers(); ++l) {
      MemoryRow row;
      for (const double n : streamed_) row.weight.push_back(layers_ - n);
      memory_.push_back(std::move(row));
    }
    for (std::size_t k = 0; k < patterns(); ++k) {
      for (const auto layer : problem.candidates[k].offloaded) {
        memory_[static_cast<std::size_t>(layer) - 1].weight[k] += 1;
      }
    }
    keep_binding(memory_);
  }
  least_memory_.assign(requests() + 1, 0.0);
  resident_memory_.assign(requests() + 1, 0.0);
  for (std::size_t r = requests(); r-- > 0;) {
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t k = 0; k < patterns(); ++k) {
      // Under Eq. 1 a request takes at least its resident layers, and one layer in any case.
      const double weight =
          problem.buffer == BufferRule::kStrict ? strict[k] : std::max(1.0, layers_ - streamed_[k]);
      least = std::min(least, blocks_[r] * weight + open_[k]);
    }
    least_memory_[r] = least_memory_[r + 1] + least;
    resident_memory_[r] = resident_memory_[r + 1] + blocks_[r] * layers_;
  }
}

std::vector<MemoryRow> PlacementSpace::relaxed_memory() const {
  auto rows = memory_;
  const double largest = std::max(1.0, blocks_.front());
  for (auto& row : rows) {
    for (std::size_t k = 0; k < patterns(); ++k) row.weight[k] += open_[k] / largest;
  }
  return rows;
}

bool PlacementSpace::fits(std::span<const double> load, double open) const {
  return std::all_of(memory_.begin(), memory_.end(), [&](const MemoryRow& row) {
    return std::inner_product(load.begin(), load.end(), row.weight.begin(), open) <=
           capacity_ + kRounding;
  });
}

bool PlacementSpace::may_fit(std::span<const double> load, double open, std::size_t depth) const {
  return fits(load, open + least_memory_[depth]);
}

double PlacementSpace::least_fetched(std::span<const double> load, double open,
                                     std::size_t depth) const {
  double fetched = 0;
  for (std::size_t k = 0; k < patterns(); ++k) fetched += load[k] * streamed_[k];
  // A fetched block saves at most one resident block.
  const double used = std::inner_product(load.begin(), load.end(), memory_.front().weight.begin(),
                                         open + resident_memory_[depth]);
  return fetched + std::max(0.0, used - capacity_ - kRounding);
}

TieBreak PlacementSpace::ties_of(std::size_t request, std::size_t pattern) const {
  const auto blocks = static_cast<std::int64_t>(blocks_[request]);
  const auto streamed = static_cast<std::int64_t>(streamed_[pattern]);
  return {blocks * streamed, streamed > 0 ? blocks : 0, current_[request] == pattern ? 0 : 1};
}

Plan PlacementSpace::empty_plan() const {
  Plan plan;
  plan.load.assign(patterns(), 0.0);
  return plan;
}

void PlacementSpace::assign(Plan& plan, std::size_t request, std::size_t pattern) const {
  plan.choice.push_back(pattern);
  plan.load[pattern] += blocks_[request];
  plan.open += open_[pattern];
  plan.used += use(request, pattern);
  const auto ties = ties_of(request, pattern);
  plan.ties.fetched += ties.fetched;
  plan.ties.staging += ties.staging;
  plan.ties.changes += ties.changes;
}

void PlacementSpace::reassign(Plan& plan, std::size_t request, std::size_t pattern) const {
  const auto before = plan.choice[request];
  plan.choice[request] = pattern;
  plan.load[before] -= blocks_[request];
  plan.load[pattern] += blocks_[request];
  plan.open += open_[pattern] - open_[before];
  plan.used += use(request, pattern) - use(request, before);
  const auto out = ties_of(request, before);
  const auto in = ties_of(request, pattern);
  plan.ties.fetched += in.fetched - out.fetched;
  plan.ties.staging += in.staging - out.staging;
  plan.ties.changes += in.changes - out.changes;
}

}  // namespace kvd::planner
