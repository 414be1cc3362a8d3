#include <gtest/gtest.h>

#include "tests/lab/bench/engine_costs.hpp"

namespace kvd::bench {
namespace {

sim::Profile profile_with(const sim::IterationModel& model) {
  sim::Profile profile;
  profile.iteration = model;
  return profile;
}

/// Samples of an engine with the given costs.
std::vector<CostSample> samples_of(const sim::IterationModel& model) {
  std::vector<sim::Batch> batches;
  for (const std::int64_t requests : {1, 2, 4, 8}) {
    for (const std::int64_t context : {64, 256}) batches.push_back({requests, requests * context});
  }
  for (const std::int64_t prompt : {32, 144, 256}) {
    const auto length = static_cast<double>(prompt);
    batches.push_back({0, 0, prompt, length * (length + 1) / 2});
  }
  std::vector<CostSample> samples;
  samples.reserve(batches.size());
  for (const sim::Batch& batch : batches) {
    samples.push_back({batch, iteration_time(profile_with(model), batch).count()});
  }
  return samples;
}

sim::IterationModel engine() {
  sim::IterationModel model;
  model.fitted = true;
  model.fixed = sim::Seconds(1e-3);
  model.context_token = sim::Seconds(2e-7);
  model.sequence = sim::Seconds(3e-4);
  model.prefill_fixed = sim::Seconds(5e-4);
  model.flops = 1;
  model.flops_per_token = 1e-4;
  model.attention_flops_per_pair = 3e-8;
  return model;
}

TEST(CostFit, FindsTheCostsThatMadeTheSamples) {
  const sim::IterationModel model = fitted_model(samples_of(engine()));
  EXPECT_NEAR(model.fixed.count(), 1e-3, 1e-8);
  EXPECT_NEAR(model.context_token.count(), 2e-7, 1e-12);
  EXPECT_NEAR(model.sequence.count(), 3e-4, 1e-9);
  EXPECT_NEAR(model.prefill_fixed.count(), 5e-4, 1e-8);
  EXPECT_NEAR(model.flops_per_token, 1e-4, 1e-9);
  EXPECT_NEAR(model.attention_flops_per_pair, 3e-8, 1e-12);
}

// If context is free, noise can make plain least squares give it a negative cost. A simulated
// iteration would then be the faster the more it reads.
TEST(CostFit, NoTermIsBelowZero) {
  sim::IterationModel model = engine();
  model.context_token = sim::Seconds(0);
  auto samples = samples_of(model);
  for (std::size_t i = 1; i < 8; i += 2) samples[i].seconds *= 0.97;  // the longer contexts
  const sim::IterationModel fitted = fitted_model(samples);
  EXPECT_EQ(fitted.context_token.count(), 0);
  EXPECT_GT(fitted.sequence.count(), 0);
  for (const CostSample& sample : samples) {
    const double seconds = iteration_time(profile_with(fitted), sample.batch).count();
    EXPECT_NEAR(seconds / sample.seconds, 1, 0.03);
  }
}

}  // namespace
}  // namespace kvd::bench
