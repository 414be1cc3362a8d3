#pragma once

#include "planner/policy/ranking.hpp"

namespace kvd::planner {

/// Baselines that order by output length (RotationRequest::output_tokens; unknown ones go last).
enum class LengthRule {
  /// Orders the queue by predicted tokens still to come.
  kSrtf,
  /// Orders the queue by whole output length, which an oracle knows: for kvd-plan and the
  /// simulator.
  kSjfOracle,
  /// Orders all requests, the running ones too, by predicted whole length: longer ones leave for
  /// shorter.
  kLtr,
};

/// Under contention the shortest enter first, and the first that does not fit stops the rest.
/// Source: srtf OrbitFlow sec. 6 (Fig. 13), which sorts the queue at each admission; sjf_oracle
/// SuperInfer app. A; ltr the scheduler of Fu et al. 2024 as SuperInfer sec. 6 runs it. Three rules
/// are ours: the longest leave when growth exceeds the room; b_xfer bounds an iteration's
/// transfers; and a request that was passed over kSkipLimit times is promoted. LTR has such a
/// promotion with a threshold of its own, the other two lack it (`paper` leaves it out).
/// Cost:   O(n log n). Owner: one thread.
class LengthPolicy final : public RotationPolicy {
 public:
  LengthPolicy(std::string_view name, LengthRule rule) : name_(name), rule_(rule) {}
  [[nodiscard]] std::string_view name() const override { return name_; }
  [[nodiscard]] const RotationDecision& decide(const RotationSnapshot& snapshot, Seconds now,
                                               const RotationConfig& config) override;

 private:
  [[nodiscard]] double score(const RotationRequest& request, const RotationConfig& config) const;
  void rank(const RotationSnapshot& snapshot, const RotationConfig& config);
  void take(const RotationSnapshot& snapshot, Bytes room);
  void evict(const RotationSnapshot& snapshot, double score, Bytes wanted, Bytes& room,
             bool part_helps);

  std::string_view name_;
  LengthRule rule_;
  std::vector<Ranked> queue_;    // shortest first; the field for the lag holds the length
  std::vector<Ranked> running_;  // those that may leave, longest last
  Bytes wanted_;
  Bytes transfer_left_;
  Bytes dram_left_;
  RotationDecision decision_;
};

}  // namespace kvd::planner
