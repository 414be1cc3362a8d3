#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "ipc/vocabulary/units.hpp"
#include "planner/model/seconds.hpp"

namespace kvd::planner {

enum class RequestState : std::uint8_t { kWaiting, kRunning, kRotary };

/// What a rotation policy sees of one request.
/// Source: SuperInfer sec. 4 (VLT); fields beyond it are kvd design.
struct RotationRequest {
  RequestState state = RequestState::kWaiting;
  /// HBM the request needs in order to run (waiting, rotary) or occupies (running): blk(r).
  Bytes bytes;
  /// When the request arrived. Needed for waiting requests.
  std::optional<Seconds> t_arr;
  /// When a rotary request made its last token. A request that was preempted before its first token
  /// has none and counts as waiting.
  std::optional<Seconds> t_last;
  /// When a running request began to run. Required for running requests.
  std::optional<Seconds> t_run;
  /// A running request in the midst of its prefill is never a victim.
  bool prefilling = false;
  /// Leaving would cost all that the request has computed, so no policy makes it a victim.
  bool stays = false;
  /// Its place among the waiting requests, where the caller has put them in the order of service;
  /// only `unified` asks. None: they go by when their first tokens are due.
  std::optional<std::uint32_t> place{};
  /// Iterations under contention in which the request was not taken.
  std::int32_t skips = 0;
  /// A running request has made a token since it came in; without one it is never a victim.
  bool made_token = true;
  /// Tokens made but not yet due to the user; only `unified` asks.
  std::int64_t deposit = 0;
  /// Length of the whole answer, predicted (or known, where the caller is an oracle), and how much
  /// of it is made. The policies by length ask for it, and `unified` does to decide how long it may
  /// let others wait.
  std::optional<Tokens> output_tokens;
  Tokens tokens_made;
  /// The shortest time for the rest of its prefill; only `unified` asks. 0: not known.
  Seconds prefill{0};
  /// Service levels S_F and S_B of this request.
  Seconds ttft_slo{5.0};
  Seconds tbt_slo{0.1};
  /// Only `unified` asks: the longest that its user may be without a token after the first. None:
  /// its client shows a token each S_B, so it can wait as long as the tokens already made last.
  /// With a gap a running request has `t_last`, too.
  std::optional<Seconds> gap{};

  [[nodiscard]] bool counts_as_waiting() const {
    return state == RequestState::kWaiting || (state == RequestState::kRotary && !t_last);
  }
  /// It waits for its first token, which cannot come in time whatever is done.
  [[nodiscard]] bool hopeless(Seconds now) const {
    return counts_as_waiting() && now + prefill > t_arr.value_or(now) + ttft_slo;
  }
};

/// The DRAM that rotation may use; gates apply only where it is known.
struct DramUse {
  Bytes total;
  Bytes free;
};

/// All that a rotation policy decides on. Budgets are bytes, so that requests of several classes
/// compare.
struct RotationSnapshot {
  /// Free HBM (B_HBM). It may be negative: more is in use than is allowed.
  Bytes b_hbm;
  /// What one iteration may move (B_xfer).
  Bytes b_xfer;
  /// What the running requests will grow by in the next iteration.
  Bytes growth;
  std::optional<DramUse> dram;
  /// The mean lateness of the next token of requests that came back recently; only `unified` asks.
  Seconds mean_lateness{0};
  /// Mean time of an iteration; only `unified` asks. 0: not known.
  Seconds step{0};
  /// Tokens made a second while a request waited; only `unified` asks. 0: not known, so it is as
  /// many as steps without prompts would make.
  double tokens_per_s = 0;
  /// Room of a leaving request is free in the same step, not only once it has been copied; only
  /// `unified` asks.
  bool at_once = false;
  std::vector<RotationRequest> requests;
};

/// Which requests `unified` serves where not every deadline can be met.
enum class Overload : std::uint8_t {
  /// By arrival: first tokens come in time, later ones suffer.
  kTtft,
  /// Requests whose deadline can still be met come first; those past it go last.
  kGoodput,
};

struct RotationConfig {
  double alpha = 3;
  double beta_b = 0;
  double beta_f = 0.5;
  /// The published algorithm without kvd's guards, for comparison.
  bool paper = false;
  Overload overload = Overload::kTtft;
};

/// The requests that run next and those that leave, as indices into RotationSnapshot::requests.
struct RotationDecision {
  /// Waiting and rotary requests to bring in, in order of selection.
  std::vector<std::uint32_t> prioritized;
  /// Running requests to rotate out, in order of preemption.
  std::vector<std::uint32_t> preempted;
  /// Waiting requests that are about to miss their first token and for which none can leave: they
  /// prefill layer by layer into DRAM. Only `unified` names some.
  std::vector<std::uint32_t> layerwise;
  /// Virtual lag time in seconds (weighted by alpha), one per request.
  std::vector<double> vlt_s;
  /// Not every waiting and rotary request fits free HBM.
  bool contention = false;
  /// B_left and B_swap of the published algorithm, before any guard removes a request; only under
  /// contention and only for policies that have them.
  std::optional<Bytes> b_left;
  std::optional<Bytes> b_swap;
};

/// Iterations under contention after which a passed-over request goes first.
inline constexpr std::int32_t kSkipLimit = 32;

/// A request that is late whatever is done waits as if it had come this many of its goals later,
/// each counted as at least a second: a goal that could not be met must not be a way to the head of
/// the line.
inline constexpr std::int64_t kPatience = 32;

/// How long after its arrival a request is due, by its goal for the first token.
template <class Time>
[[nodiscard]] constexpr Time due_after(Time goal, bool late) {
  return late ? goal + std::max(goal, Time(std::chrono::seconds(1))) * kPatience : goal;
}

/// What the mechanism around a rotation policy does for it. The policy says what it wants done, so
/// that no caller asks for its name.
struct RotationTraits {
  /// Running requests may leave for others: a prompt may count on the room they hold.
  bool evicts = true;
  /// A step must not outlast the strictest goal of the requests it decodes: prefill comes in chunks
  /// that fit. Where layers stream, the placement plan bounds the step instead.
  bool guards_steps = false;
  /// This policy serves prompts that are about to miss their first token, by `overload`: under
  /// kTtft no admission policy holds them back; under kGoodput those that are already late queue
  /// last.
  bool serves_the_late = false;
  /// It chooses which requests prefill layer by layer (RotationDecision::layerwise); otherwise all
  /// that the admission policy lets in may, by arrival.
  bool chooses_layerwise = false;
  /// It rotates whole requests while HBM holds many: layers stream only where HBM holds few.
  bool streams_only_large_requests = false;
  /// It asks how long answers are: RotationRequest::output_tokens.
  bool asks_lengths = true;
};

/// Decides which requests run: a pure function of its arguments. The object holds scratch memory
/// only, so that a steady state allocates nothing.
/// Owner: one thread.
/// Errors: none; the snapshot is well-formed (finite, required times present).
class RotationPolicy {
 public:
  virtual ~RotationPolicy() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] virtual RotationTraits traits() const { return {}; }
  /// The decision is valid until the next call.
  [[nodiscard]] virtual const RotationDecision& decide(const RotationSnapshot& snapshot,
                                                       Seconds now,
                                                       const RotationConfig& config) = 0;
};

/// Virtual lag time, in seconds: how overdue a request is to run, negative while it runs.
/// Source: SuperInfer sec. 4.1 with the S_B / S_F names of its text put right.
[[nodiscard]] double virtual_lag(const RotationRequest& request, Seconds now,
                                 const RotationConfig& config);

/// First come, first served: arrival, else last token, else start of running. Equal keys keep their
/// input order.
[[nodiscard]] Seconds fcfs_key(const RotationRequest& request);

}  // namespace kvd::planner
