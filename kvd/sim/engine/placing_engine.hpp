#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "kvd/core/door/effects.hpp"
#include "kvd/core/door/events.hpp"
#include "kvd/sim/engine/balloon.hpp"
#include "kvd/sim/engine/profile.hpp"
#include "kvd/sim/world/arrival.hpp"
#include "kvd/sim/world/result.hpp"

namespace kvd::sim {

/// An inference engine that places its blocks itself, as vLLM does: it serves running requests
/// first, then waiting ones, until the step's tokens or its blocks run out. Where running requests
/// lack a block, the latest of them is preempted. With kvd's scheduler it tells kvd its state once
/// a step, and the answer says which requests leave and which may come in before it does that.
/// Requests that leave are parked in DRAM where there is room; otherwise they are computed again.
/// It has no clock and no Controller.
///
/// Source: vLLM 0.32's scheduler and client_lib/python/kvd_vllm/scheduler.py. Prefix caching is not
/// simulated: what stock vLLM preempts it computes again as a whole.
///
/// A request's id is its place in the workload plus one. Owner: one thread.
class PlacingEngine {
 public:
  struct Room {
    std::int64_t hbm = 0;    ///< the most blocks for KV
    std::int64_t dram = 0;   ///< blocks for what is parked; 0: nothing is parked
    std::int64_t chunk = 0;  ///< HBM comes and goes by so many blocks; 0: all of it is there
  };
  /// Blocks of a request that leave for DRAM, or come back.
  struct Transfer {
    std::uint32_t index = 0;
    std::int64_t blocks = 0;
    bool out = false;
  };

  /// `workload` and `records` outlive it; it touches only the entries that arrive here. A step
  /// computes at most `tokens` tokens, of answers and prompts together; 0: any number.
  PlacingEngine(const Profile& profile, Room room, std::int64_t tokens, const Workload& workload,
                std::vector<RequestRecord>& records);

  /// A request that can never fit is refused.
  void arrive(std::uint32_t index);
  /// Requests that are over.
  [[nodiscard]] std::size_t done() const { return done_; }
  [[nodiscard]] std::size_t open() const {
    return waiting_.size() + running_.size() + loading_.size();
  }
  /// A request waits, or a prompt is being computed: kvd has something to decide.
  [[nodiscard]] bool asks() const;
  /// What kvd is told. `origin` is the time at which the run began.
  [[nodiscard]] core::Schedule told(TimePoint origin) const;

  /// Schedules the next step. `answer`: kvd's; null: vLLM's own rule, first come, first served.
  [[nodiscard]] Batch plan(const core::ScheduleReply* answer, TimePoint now = TimePoint(0));
  /// The planned step begins to compute.
  void begin(Seconds now);
  /// The step ended after this long. Returns how many tokens of answers were made.
  std::size_t complete(Seconds now, Nanoseconds took);
  /// What has become due to be copied since the last call.
  [[nodiscard]] std::vector<Transfer> take_transfers() {
    return std::exchange(transfers_, std::vector<Transfer>{});
  }
  /// The copy has ended.
  void copied(const Transfer& transfer);

  // ---- HBM that comes and goes ----
  // Before a step is planned: takes in what has come about, and which chunks are in the way.

  void hear(const News& news) { balloon_.hear(news); }
  /// Parks the latest request that runs in memory which others have waited for too long, one a
  /// step.
  void make_way(TimePoint now);
  /// What the worker's side is told; call it after planning. `origin` as in told().
  [[nodiscard]] Orders orders(TimePoint now, TimePoint origin);
  /// True while it makes steps without requests, until everything is given back.
  [[nodiscard]] bool gives_back() const { return balloon_.has_work(); }

  /// The share of its blocks that hold something.
  [[nodiscard]] double used() const {
    return 1 - static_cast<double>(balloon_.free()) /
                   static_cast<double>(std::max<std::int64_t>(1, balloon_.granted()));
  }
  [[nodiscard]] const Profile& profile() const { return profile_; }

 private:
  struct Live {
    Tokens computed;          ///< tokens whose KV it has; for a parked request those that are kept
    Tokens generated;         ///< tokens of its answer
    Balloon::Blocks blocks;   ///< of HBM
    Balloon::Blocks leaving;  ///< blocks of HBM that are being copied to DRAM
    std::int64_t parked = 0;  ///< blocks of DRAM
  };
  struct Item {
    std::uint32_t index = 0;
    Tokens tokens;
    bool decodes = false;
  };

  [[nodiscard]] Tokens all_tokens(std::uint32_t index) const;
  [[nodiscard]] bool computes_prompt(std::uint32_t index) const;
  [[nodiscard]] std::int64_t blocks_for(Tokens tokens) const;
  [[nodiscard]] bool can_park(std::uint32_t index) const;
  [[nodiscard]] core::Schedule::Request told_of(std::uint32_t index, TimePoint origin) const;
  void preempt(std::uint32_t index);
  /// Victims leave, and requests that may come in move to the front. Returns how many may come in.
  [[nodiscard]] std::size_t apply(const core::ScheduleReply& answer);
  [[nodiscard]] std::size_t let_in(const std::vector<RequestId>& admitted);
  /// False: a request had to leave.
  [[nodiscard]] bool serve_running(TimePoint now);
  [[nodiscard]] bool make_room_for(std::uint32_t index, Tokens tokens, TimePoint now);
  void serve_waiting(std::size_t shown);
  [[nodiscard]] bool come_in(std::uint32_t index);
  [[nodiscard]] Batch batch() const;
  [[nodiscard]] std::int64_t blocks_ahead(std::uint32_t index, std::int64_t ahead) const;
  [[nodiscard]] core::Need need_of(std::uint32_t index, TimePoint now, TimePoint origin) const;
  [[nodiscard]] Bytes bytes_of(std::int64_t chunks) const;

  const Profile& profile_;
  Room room_;
  std::int64_t tokens_;
  const Workload& workload_;
  std::vector<RequestRecord>& records_;
  std::vector<Live> live_;  ///< by place in the workload
  std::deque<std::uint32_t> waiting_;
  std::vector<std::uint32_t> running_;
  std::vector<std::uint32_t> loading_;  ///< requests whose blocks come back
  std::size_t done_ = 0;
  Balloon balloon_;
  std::int64_t leaving_ = 0;  ///< blocks of HBM that are free once they have been copied
  std::int64_t budget_ = 0;   ///< tokens left in the current step
  std::vector<Item> items_;   ///< of the planned step
  std::vector<Transfer> transfers_;
  struct LastStep {
    Nanoseconds took{0};
    Tokens prefill;
    std::int64_t decodes = 0;
  } last_step_;
};

}  // namespace kvd::sim
