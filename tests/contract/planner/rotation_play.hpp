#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "planner/baselines/all_policies.hpp"
#include "tests/unit/planner/policy/requests.hpp"

namespace kvd::planner::testing {

/// What is played: engines that make a token at fixed intervals of ticks, and how requests arrive.
struct Load {
  std::vector<int> periods;
  int most_tokens;
  double arrivals_per_tick;
  /// One request in this many is as large as HBM, the rest are small; 0 = any size.
  unsigned large_one_in;
  /// Ticks from one due token to the next; a long one lets slow engines build deposits.
  int tbt = 2;
};

/// Engines and users around one rotation policy, tick by tick, until everybody has ended. Fails the
/// test where a request waits longer than the bound, or leaves without a token since it came in.
class Play {
 public:
  static constexpr std::int64_t kHbm = 40;

  Play(std::string_view policy, std::uint64_t seed, Load load, RotationConfig config = {})
      : sut_(all_policies().rotation(policy).value()),
        config_(config),
        random_(seed),
        load_(std::move(load)) {}

  void run(int ticks) {
    std::poisson_distribution<int> arrivals(load_.arrivals_per_tick);
    while (!::testing::Test::HasFatalFailure() && (now_ < ticks || !jobs_.empty())) {
      ++now_;
      for (int n = now_ <= ticks ? arrivals(random_) : 0; n > 0; --n) arrive();
      decide();
      make_tokens();
    }
  }

  [[nodiscard]] int rotations() const { return rotations_; }

 private:
  struct Job {
    RotationRequest request;
    int left = 0;
    int period = 1;
    int since = 0;  // it waits: arrived, or left
    std::size_t ahead = 0;
    int next_due = 0;
  };

  std::int64_t draw_size() {
    if (load_.large_one_in == 0) return 1 + static_cast<std::int64_t>(random_() % 20);
    return random_() % load_.large_one_in == 0 ? kHbm
                                               : 1 + static_cast<std::int64_t>(random_() % 4);
  }

  void arrive() {
    Job job;
    job.request = waiting(draw_size(), now_);
    job.request.ttft_slo = Seconds(20);
    job.request.tbt_slo = Seconds(load_.tbt);
    job.left = 1 + static_cast<int>(random_() % static_cast<unsigned>(load_.most_tokens));
    job.request.output_tokens = Tokens(job.left);
    job.period = load_.periods[random_() % load_.periods.size()];
    job.since = now_;
    job.ahead = jobs_.size();
    jobs_.push_back(job);
  }

  // Every request waiting too long is a failure, not only one that gets in late.
  void check_wait(const Job& job) const {
    if (job.request.state == RequestState::kRunning) return;
    const int slowest = *std::max_element(load_.periods.begin(), load_.periods.end());
    const auto bound =
        (job.ahead + kSkipLimit) * static_cast<std::size_t>(load_.most_tokens * slowest);
    ASSERT_LE(static_cast<std::size_t>(now_ - job.since), bound);
  }

  void decide() {
    auto of = snapshot(kHbm, 25, {});
    of.step = Seconds(*std::max_element(load_.periods.begin(), load_.periods.end()));
    for (auto& job : jobs_) {
      check_wait(job);
      if (job.request.state == RequestState::kRunning) of.b_hbm -= job.request.bytes;
      of.requests.push_back(job.request);
    }
    ASSERT_GE(of.b_hbm, Bytes(0));
    const RotationDecision& decision = sut_->decide(of, Seconds(now_), config_);
    for (auto& job : jobs_) job.request.skips += decision.contention ? 1 : 0;
    for (const auto index : decision.preempted) leave(jobs_[index]);
    for (const auto index : decision.prioritized) enter(jobs_[index]);
  }

  void leave(Job& job) {
    ASSERT_TRUE(job.request.made_token) << "moved in and out without a token";
    job.request.state = RequestState::kRotary;
    job.request.t_last = Seconds(now_);
    job.since = now_;
    job.ahead = jobs_.size();
    ++rotations_;
  }

  void enter(Job& job) {
    if (job.request.state == RequestState::kWaiting) job.next_due = now_;
    job.request.state = RequestState::kRunning;
    job.request.t_run = Seconds(now_);
    job.request.made_token = false;
    job.request.skips = 0;
  }

  void make_tokens() {
    for (auto& job : jobs_) {
      if (job.request.deposit > 0 && now_ >= job.next_due) {
        --job.request.deposit;
        job.next_due = now_ + load_.tbt;
      }
      if (job.request.state != RequestState::kRunning || now_ % job.period != 0) continue;
      job.request.made_token = true;
      ++job.request.deposit;
      ++job.request.tokens_made.value;
      --job.left;
    }
    std::erase_if(jobs_, [](const Job& job) { return job.left == 0; });
  }

  std::unique_ptr<RotationPolicy> sut_;
  RotationConfig config_;
  std::mt19937_64 random_;
  Load load_;
  std::vector<Job> jobs_;
  int now_ = 0;
  int rotations_ = 0;
};

}  // namespace kvd::planner::testing
