#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/core/door/events.hpp"
#include "kvd/core/ledger/context.hpp"
#include "kvd/core/ledger/requests.hpp"
#include "kvd/store/index/index.hpp"
#include "planner/policy/admission/admission.hpp"
#include "planner/policy/length_predictor.hpp"
#include "planner/policy/rotation.hpp"

namespace kvd::core {

/// What the policies know beyond memory: how long steps take, how fast the links are, how long
/// requests stay away, how long answers get, and how many tokens each user has saved up.
///
/// Source: kvd design; lengths as planner::LengthPredictor. Clients pace by TokenDeposit, of which
/// decisions need only Times::due.
///
/// Owner: control thread. Cost: O(1), measure_step O(requests of the session).
class Knowledge {
 public:
  static constexpr double kLongestStep = 3600;  ///< seconds; a longer one teaches nothing

  Knowledge(Context& context, Requests& requests)
      : context_(context), requests_(requests), links_(context.config.hbm.size()) {}

  // ---- learning ----
  // Copies into `to` took this long, those of several devices side by side and with equal bytes
  // each. The rate follows a changed link within a few copies.
  void measure_link(const std::vector<DeviceId>& devices, Tier to, const CopyFinished& finished);
  /// Whether the time since the session's last step is that of one iteration and nothing else. An
  /// engine that waits until a copy has ended, or for requests, steps without anything to run; a
  /// pipelined one steps when it begins, so its first step measures nothing. `running`: an
  /// iteration runs at this step.
  [[nodiscard]] static bool was_iteration(const Session& session, bool running);
  /// The iteration that the session reports took this long, pipelined or not.
  void measure_step(Session& session, double took);
  /// Measures the last step of an engine that places its own blocks, as its call tells.
  static void measure_step(Costs& costs, const Schedule& told);
  /// The engine made `tokens` tokens in `s` seconds, while a request waited.
  static void measure_pace(Costs& costs, std::int64_t tokens, double s);
  /// Sums up what is left of the prompts that have begun: waiting requests have that ahead of them.
  void look_ahead(Session& session) const;
  static void ended(Session& session, const Request& request);
  /// The request made `made` tokens between `first` and `last`: sets when its next one is due to
  /// the user.
  static void pace(Seen& request, Tokens made, TimePoint first, TimePoint last);
  void returned(const Request& request);

  // ---- knowing ----
  // Bytes a second, h2d and d2h; 0: not measured yet.
  [[nodiscard]] const std::array<double, 2>& link_rates(DeviceId device) const {
    return links_[device.value].rates;
  }
  /// The rate of the slower direction; 0: one of them is not measured yet.
  [[nodiscard]] double slower_link(DeviceId device) const;
  /// The same rate, or a guess if it is 0.
  [[nodiscard]] double link_or_default(DeviceId device) const;
  [[nodiscard]] double fetch_rate(DeviceId device) const;  ///< bytes a second into HBM
  /// Mean time of an iteration of the engines on the device, without waits for layers; 0: not
  /// measured yet.
  [[nodiscard]] double mean_step_s(DeviceId device) const { return links_[device.value].step_s; }
  /// The mean lateness, in seconds, of the next token of requests that were rotated out and came
  /// back.
  [[nodiscard]] double mean_lateness_s() const { return mean_lateness_s_; }
  /// Time of an iteration that decodes `decodes` requests, without prefill; 0: not known yet.
  [[nodiscard]] static double decode_s(const Costs& costs, std::int64_t decodes);
  /// The same beside prompts, without the time that the prompts' tokens take. It is more than
  /// decode_s() where contexts have grown since an iteration had no prompts.
  [[nodiscard]] static double decode_beside_prefill_s(const Costs& costs, std::int64_t decodes);
  /// Goals for a request without any, from what its engine can do; none: not known yet.
  [[nodiscard]] static std::optional<Slo> own_goals(const Costs& costs, Tokens prompt);
  /// What a token of a prompt costs; a guess until the engine's steps have shown it.
  [[nodiscard]] static double prefill_token_s(const Session& session);
  /// How long the engine computes prompts that have begun before it gets to this one.
  [[nodiscard]] double prefill_ahead_s(const Request& request) const;
  /// What computing its prompts costs, as a multiple of that guess; none: not measured yet.
  [[nodiscard]] static std::optional<double> prefill_cost(const Session& session);
  /// What a byte of its full blocks saves a request that need not compute them, going by the guess.
  [[nodiscard]] static store::SecondsPerByte saved(const Session& session);
  /// The same for blocks of `bytes` bytes for `tokens` tokens.
  [[nodiscard]] static store::SecondsPerByte saved(Tokens tokens, Bytes bytes);
  /// How long the rest of the request's prefill takes. For one inside it is computed alone; for one
  /// that waits it comes behind the prompts that have begun, in the share of each iteration that
  /// prompts have had. 0: not measured yet.
  [[nodiscard]] double prefill_left_s(const Seen& request) const;
  /// Its first token cannot come in time any more. Precondition: it has no token.
  [[nodiscard]] bool hopeless(const Seen& request) const;
  [[nodiscard]] planner::LengthEstimate expected_length(const Seen& request) const;
  /// Tokens still to come that can be counted on while nothing is known of lengths: what most
  /// answers have, at least 1. None: lengths are known, so use expected_length().
  [[nodiscard]] std::optional<std::int64_t> guessed_to_come(const Seen& request) const;
  /// The answer length that memory is kept for: few answers are longer. Never more than was
  /// announced.
  [[nodiscard]] Tokens reserved_length(const Seen& request) const;
  /// Its tokens that are made but not yet due.
  [[nodiscard]] std::int64_t saved_up(const Seen& request) const;

  // ---- how policies see a request ----
  // When it came, began and made its last token, and when each of these is late.
  [[nodiscard]] static planner::RotationRequest as_timed(const Seen& request);
  /// The request without its memory. `shown_step_s`: its client shows each token when it comes, and
  /// a step takes this long; none: it shows one each interval.
  [[nodiscard]] planner::RotationRequest as_rotation(
      const Seen& request, std::optional<double> shown_step_s = std::nullopt) const;
  /// A request that decodes; a step takes this long.
  [[nodiscard]] planner::DecodingRequest as_decoding(const Seen& request, std::int64_t saved_up,
                                                     double step_s) const;
  /// A request that has something to compute before its next token, and `done` of it computed.
  [[nodiscard]] planner::QueuedPrompt as_queued(const Seen& request, bool begun, Tokens done) const;
  /// `token`: bytes of a token in one of `groups` layer groups.
  [[nodiscard]] planner::PrefillCosts prefill_costs(const Session& session, std::uint32_t groups,
                                                    double token) const;

 private:
  [[nodiscard]] double batch_tokens(const Session& session);
  void measure_plan(Session& session, double tokens, double took);
  [[nodiscard]] Tokens prefill_ahead(const Session& session) const;

  struct Link {
    std::array<double, 2> rates{};
    double step_s = 0;  ///< mean iteration time of the engines that use it
  };

  Context& context_;
  Requests& requests_;
  std::vector<Link> links_;  ///< by device
  double mean_lateness_s_ = 0;
};

}  // namespace kvd::core
