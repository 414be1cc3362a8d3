#pragma once

#include "planner/policy/ranking.hpp"

namespace kvd::planner {

/// Largest-VLT-first. Under contention the requests that lag most enter, as far as free HBM and one
/// iteration's transfer budget reach, and the requests that have run longest leave.
/// Source: SuperInfer Algorithm 1. These guards are ours (RotationConfig::paper leaves them out):
/// growth counts before everything; a request in prefill, or without a token since it came in, is
/// no victim; with no victim left the last request chosen is dropped again; above 90 % DRAM use no
/// new request is admitted, from 95 % none is preempted; a request that was passed over kSkipLimit
/// times goes first and, where it does not fit, has room made for it.
/// Cost:   O(n log n); 10,000 requests in about a millisecond.
class LvfPolicy final : public RotationPolicy {
 public:
  [[nodiscard]] std::string_view name() const override { return "lvf"; }
  [[nodiscard]] RotationTraits traits() const override { return {.asks_lengths = false}; }
  [[nodiscard]] const RotationDecision& decide(const RotationSnapshot& snapshot, Seconds now,
                                               const RotationConfig& config) override;

 private:
  void rank(const RotationSnapshot& snapshot, const RotationConfig& config);
  [[nodiscard]] Bytes take_by_lag(const RotationSnapshot& snapshot, const RotationConfig& config);
  void promote_aged(const RotationSnapshot& snapshot);
  void preempt(const RotationSnapshot& snapshot, const RotationConfig& config, Bytes needed);
  [[nodiscard]] Bytes gather_victims(const RotationSnapshot& snapshot, const RotationConfig& config,
                                     Bytes needed);
  [[nodiscard]] Bytes drop_last_taken(const RotationSnapshot& snapshot, Bytes needed,
                                      Bytes available);

  std::vector<Ranked> entering_;  // waiting and rotary, except those that a DRAM gate leaves out
  std::vector<Ranked> running_;
  Bytes wanted_;
  RotationDecision decision_;
};

}  // namespace kvd::planner
