#include "tests/lab/bench/engine_costs.hpp"

#include <algorithm>
#include <random>

#include "client_lib/engine/model/hyperparameters.hpp"
#include "ipc/vocabulary/check.hpp"
#include "kvd/daemon/config/config.hpp"
#include "tests/lab/bench/bench.hpp"
#include "tests/lab/bench/serve_node.hpp"

namespace kvd::bench {
namespace {

constexpr double kCostPatience_s = 120;
constexpr std::uint32_t kCostTokens = 40;
constexpr int kCostRepetitions = 5;
constexpr std::uint32_t kKvdBlockTokens = 16;  // kvd's choice where the engine has none
constexpr std::uint32_t kMostRequests = 1024;  // as ServeNode starts its engines

double pairs_of(std::uint32_t prompt) { return prompt * (prompt + 1.0) / 2; }

std::vector<ServeRequest> batch_of(std::uint32_t requests, std::uint32_t prompt,
                                   std::uint32_t answer, std::uint16_t port, std::mt19937& random) {
  std::vector<ServeRequest> out(requests);
  for (ServeRequest& request : out) {
    request.port = port;
    request.new_tokens = answer;
    request.prompt.resize(prompt);
    for (std::uint32_t& token : request.prompt) token = random() % 256;
  }
  return out;
}

/// A sample of iterations in which all requests decode.
CostSample decode_sample(const std::vector<ServeAnswer>& answers, std::uint32_t prompt) {
  double begin = 0, end = answers.front().token_s.back();
  for (const ServeAnswer& answer : answers) {
    begin = std::max(begin, answer.token_s.front());
    end = std::min(end, answer.token_s.back());
  }
  const std::vector<double>& times = answers.front().token_s;
  std::vector<double> gaps;
  for (std::size_t i = 1; i < times.size(); ++i) {
    if (times[i - 1] >= begin && times[i] <= end) gaps.push_back(times[i] - times[i - 1]);
  }
  KVD_CHECK(!gaps.empty(), "requests sent at once decode together");
  const auto decoding = static_cast<std::int64_t>(answers.size());
  return {{decoding, decoding * (prompt + kCostTokens / 2), 0, 0}, median(gaps)};
}

CostSample prefill_sample(const ServeNode& node, std::uint32_t prompt, std::mt19937& random) {
  std::vector<double> seconds;
  for (int i = 0; i < kCostRepetitions; ++i) {
    const auto answers = serve_load(batch_of(1, prompt, 2, node.port(0), random), kCostPatience_s);
    KVD_CHECK(answers.front().complete, "an unloaded engine answers");
    seconds.push_back(answers.front().token_s.front() - answers.front().sent_s);
  }
  return {{0, 0, prompt, pairs_of(prompt)}, median(seconds)};
}

/// The least time of a token of one request, including what lies between two iterations.
sim::Seconds least_iteration(const ServeStage& stage, const ServeNode& node) {
  std::mt19937 random(1);
  const auto one = batch_of(1, stage.prompt_min, kCostTokens, node.port(0), random);
  return sim::Seconds(decode_sample(serve_load(one, kCostPatience_s), stage.prompt_min).seconds);
}

std::vector<CostSample> cost_samples(const ServeStage& stage, const ServeNode& node) {
  std::mt19937 random(1);
  std::vector<CostSample> out;
  const std::uint32_t middle = (stage.prompt_min + stage.prompt_max) / 2;
  for (int round = 0; round < kCostRepetitions; ++round) {
    for (const std::uint32_t prompt : {stage.prompt_min, middle, stage.prompt_max}) {
      out.push_back(prefill_sample(node, prompt, random));
    }
    for (const std::uint32_t requests : {1U, 2U, 4U, 8U}) {
      for (const std::uint32_t prompt : {stage.prompt_min, stage.prompt_max}) {
        const auto answers = serve_load(
            batch_of(requests, prompt, kCostTokens, node.port(0), random), kCostPatience_s);
        out.push_back(decode_sample(answers, prompt));
      }
    }
  }
  return out;
}

/// The shape that kvd-engine attaches with.
core::ModelClass shape_of(const ServeStage& stage) {
  const auto model = engine::parse_random_model(stage.model);
  KVD_CHECK(model.ok(), "engines of this model have been started");
  core::ModelClass shape;
  shape.layers = model->model.layers;
  shape.layers_per_block = stage.layers_per_block;
  shape.block_tokens = kKvdBlockTokens;
  shape.bytes_per_token_per_layer =
      Bytes(static_cast<std::int64_t>(model->model.layout(1, 1).bytes_per_token_per_layer()));
  return shape;
}

Bytes bytes_of(const std::string& text) {
  const auto bytes = daemon::parse_bytes(text);
  KVD_CHECK(bytes.ok(), "the stage's sizes are sizes");
  return *bytes;
}

}  // namespace

sim::Profile measured_profile(const ServeStage& stage) {
  ServeStage ample = stage;
  ample.engines = 1;
  ample.hbm = "512MiB";
  sim::Profile profile;
  profile.name = "this-machine";
  profile.shape = shape_of(stage);
  {
    // With pacing the costs would not show, and a request that decodes and prefills would be paced
    // twice.
    ServeStage unpaced = ample;
    unpaced.iteration_ms = 0;
    profile.iteration = fitted_model(cost_samples(stage, ServeNode(unpaced, core::Tuning{})));
  }
  if (stage.iteration_ms > 0) {
    profile.iteration.least = least_iteration(stage, ServeNode(ample, core::Tuning{}));
  }
  profile.hbm = bytes_of(stage.hbm);
  profile.dram = bytes_of(stage.dram);
  const auto link = static_cast<double>(bytes_of(stage.bandwidth).value);
  profile.link.h2d_bytes_s = profile.link.d2h_bytes_s = link;
  profile.limits.max_num_seqs = kMostRequests;
  return profile;
}

}  // namespace kvd::bench
