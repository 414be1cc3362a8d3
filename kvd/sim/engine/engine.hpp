#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "kvd/core/door/effects.hpp"
#include "kvd/core/door/events.hpp"
#include "kvd/sim/engine/profile.hpp"
#include "kvd/sim/world/arrival.hpp"
#include "kvd/sim/world/result.hpp"

namespace kvd::sim {

/// Which requests get an engine's free seats.
struct Seating {
  bool shortest_first = false;  ///< ordered by the true length of the answer
  /// Seats requests by when their first tokens are due, as kvd would serve them; the value is the
  /// goal of requests that bring none. None: by arrival.
  std::optional<Seconds> ttft{};
};

/// What an inference engine knows of its requests: which wait for a seat, how far each one is, and
/// what a run list makes it compute. It has no clock, no memory and no Controller. A request's id
/// is its place in the workload plus one. A prompt's last token makes the first token of the
/// answer, and every further token is a decode step (as in kvd's other engines).
/// Owner: one thread.
class Engine {
 public:
  /// `workload` and `records` outlive it; it touches only the entries that arrive here.
  Engine(const Profile& profile, std::int64_t prefill_tokens, const Workload& workload,
         std::vector<RequestRecord>& records, Seating seating);

  /// The request came in and waits for a seat.
  void arrive(std::uint32_t index) { queue_.push_back(index); }
  /// The next request that may be submitted; none: no seat is free, or nothing waits.
  [[nodiscard]] std::optional<std::uint32_t> seat();
  void submitted(std::uint32_t index, TimePoint now, bool accepted);

  /// Takes what the reply lets run as the next iteration. Requests that ended meanwhile drop out.
  [[nodiscard]] Batch plan(const core::StepReply& reply);
  /// The planned iteration begins to compute.
  void begin(Seconds now);
  /// The iteration ended: tokens are made, and reports wait for take_reports(). Returns how many
  /// requests it finished.
  std::size_t complete(Seconds now);
  [[nodiscard]] std::vector<core::StepReport> take_reports() {
    return std::exchange(reports_, std::vector<core::StepReport>{});
  }
  /// Notes which requests are held: out of HBM, or before a first token.
  void note_holds(const core::StepReply& reply, Seconds now);
  /// The run is over for requests that are held.
  void close(Seconds now);

  [[nodiscard]] std::size_t open() const { return open_; }
  [[nodiscard]] const Profile& profile() const { return profile_; }

 private:
  struct Live {
    std::int64_t prompt = 0;
    std::int64_t output = 0;
    std::int64_t tokens = 0;   ///< KV in place
    std::int64_t granted = 0;  ///< tokens that it may have by now
    bool done = false;
    bool out = false;        ///< held as rotated or paused since it last ran
    Seconds held_since{-1};  ///< since when its prompt is held; below 0: it is not held
  };
  struct Item {
    std::uint32_t index = 0;
    std::int64_t tokens = 0;
  };

  [[nodiscard]] std::int64_t seat_tokens(std::uint32_t index) const;
  [[nodiscard]] double seat_order(std::uint32_t index) const;
  [[nodiscard]] std::deque<std::uint32_t>::iterator next_in_queue();
  void end(std::uint32_t index, Seconds now);
  void let_run(std::uint32_t index, Seconds now);

  const Profile& profile_;
  std::int64_t prefill_tokens_;
  Seating seating_;
  const Workload& workload_;
  std::vector<RequestRecord>& records_;
  std::vector<Live> live_;  ///< by place in the workload
  std::deque<std::uint32_t> queue_;
  std::size_t open_ = 0;
  std::int64_t open_tokens_ = 0;  ///< final lengths of the open ones
  std::vector<Item> items_;       ///< of the planned iteration
  std::vector<core::StepReport> reports_;
};

}  // namespace kvd::sim
