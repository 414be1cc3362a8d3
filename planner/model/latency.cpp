#include "planner/model/latency.hpp"

#include <algorithm>
#include <string>

namespace kvd::planner {
namespace {

Error invalid(std::string message) {
  return make_error(ErrorCode::kInvalidArgument, std::move(message));
}

// Times beyond this are mistakes, and their sums might leave the range of a double.
constexpr double kLongest = 1e9;

bool positive(Seconds time) { return time.count() > 0 && time.count() <= kLongest; }

// Work by release index among the transfers due so far, and the last index that has any.
struct Released {
  std::span<const double> work;
  std::size_t last;
};

// The time at which the last transfer due by now is complete. EDF is work-conserving with fixed
// priorities by due layer. So the time is the longest stretch of work "released at or after j, due
// by now", j being where the link was last idle for these transfers. At best the stretch starts
// late, so indices after the last do not count.
double ready_at(Released released, std::span<const double> ends, double per_transfer) {
  double latest = 0;
  double work = per_transfer;
  for (std::size_t j = released.last; j >= 1; --j) {
    work += released.work[j];
    latest = std::max(latest, ends[j - 1] + work);
  }
  return latest;
}

// The release index that decides ready_at.
std::size_t deciding_release(Released released, std::span<const double> ends) {
  double latest = 0;
  double work = 0;
  std::size_t decides = 0;
  for (std::size_t j = released.last; j >= 1; --j) {
    work += released.work[j];
    if (ends[j - 1] + work > latest) {
      latest = ends[j - 1] + work;
      decides = j;
    }
  }
  return decides;
}

struct Transfer {
  std::size_t due, release;
  double work;
};

template <class Visit>
void each_transfer(const StepModel& model, std::span<const StreamedRequest> requests, Visit visit) {
  for (const auto& request : requests) {
    std::size_t release = 1;
    const double work = static_cast<double>(request.blocks.value) * model.per_block.count();
    for (const auto layer : request.offloaded) {
      const auto due = static_cast<std::size_t>(layer);
      if (work > 0) visit(Transfer{due, release, work});
      release = due + 1;
    }
  }
}

// Sorts by counting: with a thousand layers and a large batch a comparison sort would take longer
// than the rest.
std::vector<Transfer> transfers_by_due(const StepModel& model,
                                       std::span<const StreamedRequest> requests) {
  std::vector<std::size_t> place(model.layers() + 2, 0);
  each_transfer(model, requests, [&](const Transfer& one) { ++place[one.due + 1]; });
  for (std::size_t l = 1; l < place.size(); ++l) place[l] += place[l - 1];
  std::vector<Transfer> sorted(place.back());
  each_transfer(model, requests, [&](const Transfer& one) { sorted[place[one.due]++] = one; });
  return sorted;
}

}  // namespace

Status check(const StepModel& model) {
  if (model.compute.empty()) return invalid("layers must be at least 1");
  if (model.layers() > kMaxLayers) return invalid("layers must be at most 1024");
  for (const auto time : model.compute) {
    if (!positive(time))
      return invalid("compute time of a layer must be above 0 and at most 1e9 s");
  }
  if (!positive(model.per_block)) {
    return invalid("link rate must be finite and at least 1e-9 blocks a second");
  }
  if (!(model.per_transfer.count() >= 0 && model.per_transfer.count() <= kLongest)) {
    return invalid("fixed cost of a transfer must be within 0..1e9 s");
  }
  return {};
}

Status check(const StepModel& model, const StreamedRequest& request) {
  if (request.blocks < Blocks{0}) return invalid("blocks must not be negative");
  if (request.blocks > kMaxBlocks) return invalid("blocks must be at most 2^40");
  std::int32_t previous = 0;
  for (const auto layer : request.offloaded) {
    if (layer <= previous || static_cast<std::size_t>(layer) > model.layers()) {
      return invalid("offloaded layers must be distinct and within 1.." +
                     std::to_string(model.layers()));
    }
    previous = layer;
  }
  return {};
}

StepLatency edf_latency(const StepModel& model, std::span<const StreamedRequest> requests) {
  const std::size_t layers = model.layers();
  const auto transfers = transfers_by_due(model, requests);
  std::vector<double> released(layers + 1, 0.0);
  std::vector<double> ends(layers + 1, 0.0);
  StepLatency result;
  auto next = transfers.begin();
  std::size_t last = 0;
  for (std::size_t l = 1; l <= layers; ++l) {
    const auto first = next;
    for (; next != transfers.end() && next->due == l; ++next) {
      released[next->release] += next->work;
      last = std::max(last, next->release);
    }
    double start = ends[l - 1];
    if (next > first) {
      start = std::max(start, ready_at({released, last}, ends, model.per_transfer.count()));
    }
    result.stalls.emplace_back(start - ends[l - 1]);
    ends[l] = start + model.compute[l - 1].count();
  }
  result.total = Seconds(ends[layers]);
  return result;
}

PatternLatency::PatternLatency(const StepModel& model,
                               std::span<const std::vector<std::int32_t>> patterns)
    : layers_(model.layers()),
      pattern_count_(patterns.size()),
      per_block_(model.per_block.count()),
      per_transfer_(model.per_transfer.count()),
      due_(layers_ + 1),
      upto_(patterns.size(), std::vector<std::int32_t>(layers_ + 1, 0)),
      released_(layers_ + 1, 0.0),
      ends_(layers_ + 1, 0.0),
      critical_(layers_ + 1, 0) {
  for (const auto time : model.compute) compute_.push_back(time.count());
  for (std::uint32_t k = 0; k < patterns.size(); ++k) {
    std::uint32_t release = 1;
    for (const auto layer : patterns[k]) {
      due_[static_cast<std::size_t>(layer)].push_back({k, release});
      release = static_cast<std::uint32_t>(layer) + 1;
      upto_[k][static_cast<std::size_t>(layer)] = 1;
    }
    for (std::size_t l = 1; l <= layers_; ++l) upto_[k][l] += upto_[k][l - 1];
  }
}

double PatternLatency::evaluate(std::span<const double> load) { return play<false>(load); }

template <bool kTrace>
double PatternLatency::play(std::span<const double> load) {
  std::fill(released_.begin(), released_.end(), 0.0);
  std::size_t last = 0;
  for (std::size_t l = 1; l <= layers_; ++l) {
    double due_now = 0;
    for (const auto& arrival : due_[l]) {
      const double work = load[arrival.pattern] * per_block_;
      released_[arrival.release] += work;
      due_now += work;
      if (work > 0) last = std::max<std::size_t>(last, arrival.release);
    }
    double start = ends_[l - 1];
    if constexpr (kTrace) critical_[l] = 0;
    if (due_now > 0) {
      start = std::max(start, ready_at({released_, last}, ends_, per_transfer_));
      if constexpr (kTrace) {
        if (start > ends_[l - 1]) critical_[l] = deciding_release({released_, last}, ends_);
      }
    }
    ends_[l] = start + compute_[l - 1];
  }
  return ends_[layers_];
}

// How many transfers of a pattern are released at or after `release` and due by `due`.
std::int32_t PatternLatency::transfers(std::size_t pattern, std::size_t release,
                                       std::size_t due) const {
  const auto& upto = upto_[pattern];
  const std::int32_t earlier = release >= 2 ? 1 + upto[release - 2] : 0;
  return std::max(0, upto[due] - earlier);
}

double PatternLatency::evaluate(std::span<const double> load, double max_load, PathCut& out) {
  const double latency = play<true>(load);
  trace(max_load, out);
  return latency;
}

void PatternLatency::trace(double max_load, PathCut& out) const {
  out.constant = 0;
  out.slope.assign(pattern_count_, 0.0);
  // Another load may leave a stretch without any transfer, and then without its fixed cost. Spread
  // over the largest load, the fixed cost stays below the truth.
  const double spread = max_load > 0 ? per_transfer_ / max_load : 0;
  for (std::size_t l = layers_; l >= 1;) {
    out.constant += compute_[l - 1];
    const std::size_t release = critical_[l];
    if (release == 0) {
      --l;
      continue;
    }
    for (std::size_t k = 0; k < pattern_count_; ++k) {
      const auto n = transfers(k, release, l);
      if (n > 0) out.slope[k] += n * per_block_ + spread;
    }
    l = release - 1;
  }
}

}  // namespace kvd::planner
