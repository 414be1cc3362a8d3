#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "planner/model/latency.hpp"

namespace kvd::planner::testing {

/// Plays one decode step event by event: the oracle of the closed form. Rules (Fig. 3): one staging
/// set per request, busy from the start of a fetch until the layer has executed; the link serves
/// the fetches with the nearest layer, equal ones evenly; a layer starts when the one before it is
/// done and all its fetches are complete.
class EventSimulation {
 public:
  EventSimulation(const StepModel& model, std::vector<StreamedRequest> requests)
      : model_(model), requests_(std::move(requests)), fetches_(requests_.size()) {
    for (std::size_t r = 0; r < requests_.size(); ++r) begin_fetch(r, 0);
  }

  double run() {
    for (std::size_t layer = 1; layer <= model_.layers(); ++layer) {
      const double ready = now_;
      while (incomplete(layer)) advance(kNever);
      stalls.push_back(now_ - ready);
      const double end = now_ + model_.compute[layer - 1].count();
      while (now_ < end) advance(end);
      for (std::size_t r = 0; r < requests_.size(); ++r) {
        if (due(r) != layer) continue;
        ++fetches_[r].index;
        fetches_[r].held = 0;
        begin_fetch(r, now_);
      }
    }
    return now_;
  }

  std::vector<double> stalls;
  /// Most blocks in staging at one time; a set counts whole from its first byte on.
  double peak_staging = 0;

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  struct Fetch {
    std::size_t index = 0;
    double eligible = kNever;
    double left = 0;  // blocks
    double held = 0;  // blocks
  };

  [[nodiscard]] std::size_t due(std::size_t r) const {
    const auto& layers = requests_[r].offloaded;
    const auto index = fetches_[r].index;
    return index < layers.size() ? static_cast<std::size_t>(layers[index]) : SIZE_MAX;
  }

  void begin_fetch(std::size_t r, double at) {
    if (due(r) == SIZE_MAX) return;
    fetches_[r].left = static_cast<double>(requests_[r].blocks.value);
    fetches_[r].eligible = at + model_.per_transfer.count();
  }

  [[nodiscard]] bool incomplete(std::size_t layer) const {
    for (std::size_t r = 0; r < requests_.size(); ++r) {
      if (due(r) <= layer && fetches_[r].left > 0) return true;
    }
    return false;
  }

  void advance(double until) {
    std::size_t nearest = SIZE_MAX;
    double next = until;
    for (std::size_t r = 0; r < requests_.size(); ++r) {
      if (due(r) == SIZE_MAX || fetches_[r].left <= 0) continue;
      if (fetches_[r].eligible > now_) {
        next = std::min(next, fetches_[r].eligible);
      } else {
        nearest = std::min(nearest, due(r));
      }
    }
    std::vector<std::size_t> served;
    for (std::size_t r = 0; r < requests_.size(); ++r) {
      if (nearest != SIZE_MAX && due(r) == nearest && fetches_[r].left > 0 &&
          fetches_[r].eligible <= now_) {
        served.push_back(r);
      }
    }
    const double each = model_.per_block.count() * static_cast<double>(served.size());
    for (const auto r : served) next = std::min(next, now_ + fetches_[r].left * each);
    double staged = 0;
    for (const auto r : served) {
      const double moved = std::min(fetches_[r].left, (next - now_) / each);
      fetches_[r].held = static_cast<double>(requests_[r].blocks.value);
      fetches_[r].left -= moved;
      if (fetches_[r].left < 1e-9) fetches_[r].left = 0;
    }
    for (const auto& fetch : fetches_) staged += fetch.held;
    peak_staging = std::max(peak_staging, staged);
    now_ = next;
  }

  const StepModel& model_;
  std::vector<StreamedRequest> requests_;
  std::vector<Fetch> fetches_;
  double now_ = 0;
};

}  // namespace kvd::planner::testing
