#include "kvd/sim/engine/profile.hpp"

#include <algorithm>
#include <cmath>

#include "planner/model/latency.hpp"

namespace kvd::sim {
namespace {

/// Collects faults, each as "key: what it must be".
class Faults {
 public:
  void positive(const char* key, double value) {
    if (!(value > 0) || !std::isfinite(value)) add(key, "must be above 0 and finite");
  }
  void not_negative(const char* key, double value) {
    if (!(value >= 0) || !std::isfinite(value)) add(key, "must be 0 or more and finite");
  }
  void share(const char* key, double value) {
    if (!(value > 0 && value <= 1)) add(key, "must be above 0 and at most 1");
  }
  void add(const std::string& key, const std::string& message) {
    text_ += (text_.empty() ? "" : "; ") + key + ": " + message;
  }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
};

void check_shape(const Profile& profile, Faults& faults) {
  const auto& shape = profile.shape;
  if (shape.layers < 1 || shape.layers > planner::kMaxLayers) {
    faults.add("shape.layers", "must be from 1 to " + std::to_string(planner::kMaxLayers));
  }
  if (shape.layers_per_block < 1 || shape.layers_per_block > std::max(1u, shape.layers)) {
    faults.add("shape.layers_per_block", "must be from 1 to the layers");
  }
  if (shape.block_tokens < 1 || shape.block_tokens > 65536) {
    faults.add("shape.block_tokens", "must be from 1 to 65536");
  }
  if (shape.bytes_per_token_per_layer < Bytes(1) ||
      shape.bytes_per_token_per_layer > Bytes(kMiB.value * 16)) {
    faults.add("shape.bytes_per_token_per_layer", "must be from 1 B to 16 MiB");
  }
}

void check_iteration(const IterationModel& model, Faults& faults) {
  faults.not_negative("iteration.fixed", model.fixed.count());
  faults.not_negative("iteration.least", model.least.count());
  faults.not_negative("iteration.context_token", model.context_token.count());
  faults.not_negative("iteration.sequence", model.sequence.count());
  faults.not_negative("iteration.prefill_fixed", model.prefill_fixed.count());
  faults.not_negative("iteration.weight_bytes", model.weight_bytes);
  faults.not_negative("iteration.attention_flops_per_pair", model.attention_flops_per_pair);
  faults.positive("iteration.flops_per_token", model.flops_per_token);
  faults.positive("iteration.flops", model.flops);
  faults.share("iteration.flops_efficiency", model.flops_efficiency);
  if (model.fitted) {
    faults.positive("iteration.fixed", model.fixed.count());
    return;
  }
  faults.positive("iteration.hbm_bytes_s", model.hbm_bytes_s);
  faults.share("iteration.hbm_efficiency", model.hbm_efficiency);
}

void check_memory(const Profile& profile, Faults& faults) {
  const Bytes block = profile.shape.slot_bytes() * std::int64_t{profile.shape.groups()};
  for (const auto& [key, bytes] : {std::pair{"hbm", profile.hbm}, {"dram", profile.dram}}) {
    if (bytes >= block) continue;
    faults.add(key, std::to_string(bytes.value) + " bytes do not hold one block of all layers (" +
                        std::to_string(block.value) + "): the model does not fit");
  }
}

void check_link(const LinkModel& link, Faults& faults) {
  faults.positive("link.h2d_bytes_s", link.h2d_bytes_s);
  faults.positive("link.d2h_bytes_s", link.d2h_bytes_s);
  faults.not_negative("link.shared_bytes_s", link.shared_bytes_s);
  faults.not_negative("link.per_copy", link.per_copy.count());
  faults.not_negative("link.per_slot", link.per_slot.count());
}

void check_limits(const Profile& profile, Faults& faults) {
  const EngineLimits& limits = profile.limits;
  if (limits.max_num_seqs < 1 || limits.max_num_seqs > 1'000'000) {
    faults.add("limits.max_num_seqs", "must be from 1 to 1000000");
  }
  faults.not_negative("limits.max_batched_tokens", static_cast<double>(limits.max_batched_tokens));
  faults.not_negative("limits.max_total_tokens", static_cast<double>(limits.max_total_tokens));
  faults.not_negative("solver.node", profile.solver_node.count());
  faults.not_negative("solver.call", profile.solver_call.count());
}

}  // namespace

Status check(const Profile& profile) {
  Faults faults;
  check_shape(profile, faults);
  check_iteration(profile.iteration, faults);
  check_link(profile.link, faults);
  check_limits(profile, faults);
  if (faults.text().empty()) check_memory(profile, faults);
  if (faults.text().empty()) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "profile \"" + profile.name + "\": " + faults.text());
}

namespace {

Seconds computing_time(const Profile& profile, const Batch& batch) {
  const IterationModel& m = profile.iteration;
  const auto n = static_cast<double>(batch.decoding);
  const auto context = static_cast<double>(batch.context_tokens);
  const auto prompt = static_cast<double>(batch.prompt_tokens);
  const double flops = m.flops * m.flops_efficiency;
  const Seconds pairs(m.attention_flops_per_pair * batch.prompt_pairs / flops);
  const auto compute = [&](double tokens) { return Seconds(m.flops_per_token * tokens / flops); };
  if (m.fitted) {
    const Seconds decode =
        n > 0 ? m.fixed + m.context_token * context + m.sequence * n : Seconds(0);
    return prompt > 0 ? decode + m.prefill_fixed + compute(prompt) + pairs : decode;
  }
  const double bandwidth = m.hbm_bytes_s * m.hbm_efficiency;
  const double kv_bytes = context *
                          static_cast<double>(profile.shape.bytes_per_token_per_layer.value) *
                          profile.shape.layers;
  return m.fixed + m.sequence * n +
         std::max(Seconds(m.weight_bytes / bandwidth), compute(prompt + n)) +
         Seconds(kv_bytes / bandwidth) + pairs;
}

}  // namespace

Seconds iteration_time(const Profile& profile, const Batch& batch) {
  const bool computes = batch.decoding > 0 || batch.prompt_tokens > 0;
  return std::max(computing_time(profile, batch), computes ? profile.iteration.least : Seconds(0));
}

}  // namespace kvd::sim
