#include <algorithm>
#include <limits>

#include "planner/model/latency.hpp"

namespace kvd::planner {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// One request's position in its list of transfers.
struct Stream {
  const StreamedRequest* request;
  double work;           // of one transfer
  std::size_t next = 0;  // the transfer that is in flight or waits for its staging
  double release = kNever;
  double remaining = 0;

  [[nodiscard]] bool done() const { return next == request->offloaded.size(); }
  [[nodiscard]] std::size_t due() const {
    return static_cast<std::size_t>(request->offloaded[next]);
  }
};

// Plays the link between events; the caller steps from layer to layer.
class SharedLink {
 public:
  SharedLink(const StepModel& model, std::span<const StreamedRequest> requests)
      : per_transfer_(model.per_transfer.count()) {
    for (const auto& request : requests) {
      const double work = static_cast<double>(request.blocks.value) * model.per_block.count();
      if (work > 0 && !request.offloaded.empty()) streams_.push_back({&request, work});
    }
    for (auto& stream : streams_) start(stream, 0);
  }

  // Runs until `until`, or until every transfer due by `layer` is complete (kNever), and returns
  // the time reached.
  double run(double now, double until, std::size_t layer) {
    while (now < until && (until != kNever || waits_for(layer))) {
      const double step = std::min(until - now, next_event(now));
      serve(now, step);
      now += step;
    }
    return now;
  }

  void layer_done(std::size_t layer, double now) {
    for (auto& stream : streams_) {
      if (stream.done() || stream.due() != layer) continue;
      ++stream.next;
      if (!stream.done()) start(stream, now);
    }
  }

  [[nodiscard]] bool waits_for(std::size_t layer) const {
    return std::any_of(streams_.begin(), streams_.end(), [layer](const Stream& stream) {
      return !stream.done() && stream.due() <= layer && stream.remaining > 0;
    });
  }

 private:
  void start(Stream& stream, double now) const {
    stream.release = now + per_transfer_;
    stream.remaining = stream.work;
  }

  [[nodiscard]] static bool active(const Stream& stream, double now) {
    return !stream.done() && stream.remaining > 0 && stream.release <= now;
  }

  [[nodiscard]] double next_event(double now) const {
    double least = kNever;
    double count = 0;
    double release = kNever;
    for (const auto& stream : streams_) {
      if (active(stream, now)) {
        least = std::min(least, stream.remaining);
        ++count;
      } else if (!stream.done() && stream.remaining > 0) {
        release = std::min(release, stream.release - now);
      }
    }
    const double first_done = count > 0 ? least * count : kNever;
    return std::min(first_done, release);
  }

  void serve(double now, double step) {
    double count = 0;
    for (const auto& stream : streams_) count += active(stream, now) ? 1 : 0;
    for (auto& stream : streams_) {
      if (!active(stream, now)) continue;
      stream.remaining -= step / count;
      // The rest is rounding, far below one block.
      if (stream.remaining <= stream.work * 1e-12) stream.remaining = 0;
    }
  }

  double per_transfer_;
  std::vector<Stream> streams_;
};

}  // namespace

StepLatency even_sharing_latency(const StepModel& model,
                                 std::span<const StreamedRequest> requests) {
  SharedLink link(model, requests);
  StepLatency result;
  double now = 0;
  for (std::size_t l = 1; l <= model.layers(); ++l) {
    const double start = link.run(now, kNever, l);
    result.stalls.emplace_back(start - now);
    const double end = start + model.compute[l - 1].count();
    link.run(start, end, l);
    now = end;
    link.layer_done(l, now);
  }
  result.total = Seconds(now);
  return result;
}

}  // namespace kvd::planner
