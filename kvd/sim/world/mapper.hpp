#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "kvd/core/door/effects.hpp"
#include "kvd/core/door/events.hpp"
#include "kvd/sim/engine/balloon.hpp"

namespace kvd::sim {

/// The worker's side of an engine whose HBM comes and goes. Beside the steps it asks kvd how much
/// it may have, puts memory behind chunks and takes it away again.
/// Source: client_lib/python/kvd_vllm/elastic/mapping.py. Owner: one thread; virtual time.
class Mapper {
 public:
  /// Sends a command to kvd, which may take this long. None: the answer comes by answered().
  using Ask = std::function<std::optional<core::Reply>(decltype(core::Command::body), Nanoseconds)>;

  /// The space has `chunks` chunks of one slab each. The first has memory already: `kept`.
  Mapper(RegionId space, RegionId kept, std::size_t chunks, Bytes chunk, Ask ask);

  /// A step begins.
  void begin(Orders orders, TimePoint now);
  /// What has come about since the last call.
  [[nodiscard]] News take_news();
  /// When it will have something to do next.
  [[nodiscard]] TimePoint next() const { return next_; }
  /// Precondition: next() has come.
  void wake(TimePoint now);
  void answered(const core::Reply& reply, TimePoint now);

 private:
  enum class Phase : std::uint8_t { kSleeps, kRests, kUnmaps, kMaps, kAwaits };

  void begin_round(TimePoint now);
  void end_call();
  void go_on(TimePoint now);
  void take_next(TimePoint now);
  void rest(TimePoint until);

  RegionId space_;
  Bytes chunk_;
  Ask ask_;
  std::vector<RegionId> parts_;  ///< by chunk; none where the chunk has no memory
  std::vector<std::uint32_t> leaving_, ordered_;
  core::Demand demand_;
  News news_;
  std::int64_t target_ = 0;  ///< how many chunks beyond the kept ones it should have
  std::uint32_t taken_ = 0;  ///< the chunk it works on
  bool is_told_ = false;     ///< orders came since the last round
  Phase phase_ = Phase::kSleeps;
  TimePoint next_ = TimePoint::max();
};

}  // namespace kvd::sim
