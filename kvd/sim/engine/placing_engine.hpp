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

/// An inference engine that places its blocks itself, as vLLM does: it serves who runs first, then
/// who waits, until the step's tokens or its blocks are out. Where those who run lack a block, the
/// latest of them is preempted. With kvd's scheduler it tells kvd what there is once a step, and
/// the answer says who leaves and who may come in before it does that. What leaves is parked in
/// DRAM where there is room, else it is computed again. It has no clock and no Controller.
///
/// Source: vLLM 0.32's scheduler and client_lib/python/kvd_vllm/scheduler.py. Prefix caching is not
/// played: what stock vLLM preempts it computes again as a whole.
///
/// A request's id is its place in the workload plus one. Owner: one thread.
class PlacingEngine {
 public:
  struct Room {
    std::int64_t hbm = 0;    ///< blocks for KV, at most
    std::int64_t dram = 0;   ///< blocks for what is parked; 0: nothing is
    std::int64_t chunk = 0;  ///< HBM comes and goes by so many blocks; 0: it is all there
  };
  /// Blocks of a request that leave for DRAM, or come back.
  struct Transfer {
    std::uint32_t index = 0;
    std::int64_t blocks = 0;
    bool out = false;
  };

  /// `workload` and `records` outlive it; it touches only the entries that arrive here. A step
  /// computes `tokens` at most, of answers and prompts together; 0: any number.
  PlacingEngine(const Profile& profile, Room room, std::int64_t tokens, const Workload& workload,
                std::vector<RequestRecord>& records);

  /// One that can never fit is refused.
  void arrive(std::uint32_t index);
  /// Requests that are over.
  [[nodiscard]] std::size_t done() const { return done_; }
  [[nodiscard]] std::size_t open() const {
    return waiting_.size() + running_.size() + loading_.size();
  }
  /// Somebody waits, or a prompt is computed: kvd has something to decide.
  [[nodiscard]] bool asks() const;
  /// What kvd is told. `origin`: the time at which the run began.
  [[nodiscard]] core::Schedule told(TimePoint origin) const;

  /// Schedules the next step. `answer`: kvd's; null: vLLM's own rule, first come, first served.
  [[nodiscard]] Batch plan(const core::ScheduleReply* answer, TimePoint now = TimePoint(0));
  /// The planned step begins to compute.
  void begin(Seconds now);
  /// It ended, after so long. How many tokens of answers were made.
  std::size_t complete(Seconds now, Nanoseconds took);
  /// What is to be copied since the last call.
  [[nodiscard]] std::vector<Transfer> take_transfers() {
    return std::exchange(transfers_, std::vector<Transfer>{});
  }
  /// The copy has ended.
  void copied(const Transfer& transfer);

  // HBM that comes and goes. Before a step is planned: what has come about, and who is in the way.

  void hear(const News& news) { balloon_.hear(news); }
  /// The latest request that runs in memory which others have waited for is parked, one a step.
  void make_way(TimePoint now);
  /// After it was planned: what the worker's side is told. `origin`: as told().
  [[nodiscard]] Orders orders(TimePoint now, TimePoint origin);
  /// It makes steps without requests, until all is given back.
  [[nodiscard]] bool gives_back() const { return balloon_.has_work(); }

  /// The share of its blocks that hold something.
  [[nodiscard]] double used() const {
    return 1 - static_cast<double>(balloon_.free()) /
                   static_cast<double>(std::max<std::int64_t>(1, balloon_.granted()));
  }
  [[nodiscard]] const Profile& profile() const { return profile_; }

 private:
  struct Live {
    Tokens computed;          ///< whose KV it has; of a parked one, that are kept
    Tokens generated;         ///< tokens of its answer
    Balloon::Blocks blocks;   ///< of HBM
    Balloon::Blocks leaving;  ///< likewise, that are being copied to DRAM
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
  /// Victims leave, who may come in stands first. Returns how many may come in.
  [[nodiscard]] std::size_t apply(const core::ScheduleReply& answer);
  [[nodiscard]] std::size_t let_in(const std::vector<RequestId>& admitted);
  /// False: somebody had to leave.
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
  std::vector<std::uint32_t> loading_;  ///< their blocks come back
  std::size_t done_ = 0;
  Balloon balloon_;
  std::int64_t leaving_ = 0;  ///< blocks of HBM that are free once they are copied
  std::int64_t budget_ = 0;   ///< tokens left of the step in hand
  std::vector<Item> items_;   ///< of the planned step
  std::vector<Transfer> transfers_;
  struct LastStep {
    Nanoseconds took{0};
    Tokens prefill;
    std::int64_t decodes = 0;
  } last_step_;
};

}  // namespace kvd::sim
