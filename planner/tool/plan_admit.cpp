#include <algorithm>
#include <functional>
#include <memory>

#include "planner/baselines/all_policies.hpp"
#include "planner/tool/decisions.hpp"
#include "planner/tool/step_fields.hpp"

namespace kvd::planner {
namespace {

struct AdmitQuestion {
  AdmissionSnapshot snapshot;
  std::vector<std::string> decoding, queued;
  std::unique_ptr<AdmissionPolicy> policy;
};

constexpr std::int64_t kMaxTurns = 1'000'000;  // engines on one device: more than any device has

std::int32_t read_small(Fields& fields, const char* key, std::int64_t most,
                        std::optional<std::int64_t> otherwise = {}) {
  const auto number = fields.whole(key, otherwise);
  if (number >= 1 && number <= most) return static_cast<std::int32_t>(number);
  fields.fail(fields.path(key) + " must be within 1.." + std::to_string(most));
  return 1;
}

PrefillCosts read_costs(Fields& fields) {
  PrefillCosts costs;
  costs.layers = read_small(fields, "layers", 1024);
  costs.alpha = fields.not_negative("alpha", 1.0);
  costs.beta = fields.not_negative("beta", 1.0);
  costs.flops_per_s = fields.positive("flops_per_s");
  costs.link = BytesPerSecond{fields.positive("link_bytes_per_s")};
  costs.params = fields.not_negative("params");
  costs.hidden = fields.not_negative("hidden");
  costs.kv_heads = read_small(fields, "kv_heads", 65536);
  costs.head_dim = read_small(fields, "head_dim", 65536);
  costs.precision_bytes = read_small(fields, "precision_bytes", 16, 2);
  costs.link_busy = fields.not_negative("link_busy", 0.0);
  return costs;
}

DecodingRequest read_decoding(Fields& fields) {
  DecodingRequest request;
  request.tpot_slo = Seconds(fields.not_negative("tpot_slo_s"));
  request.n_past = fields.whole("n_past");
  request.t_past = Seconds(fields.not_negative("t_past_s"));
  request.n_future = fields.whole("n_future");
  if (request.n_future < 1) fields.fail(fields.path("n_future") + " must be at least 1");
  request.tpot = Seconds(fields.not_negative("tpot_s"));
  request.prompt = Tokens(fields.whole("prompt_tokens", 0));
  request.deposit = fields.whole("deposit", 0);
  if (fields.has("tbt_slo_s")) request.tbt_slo = Seconds(fields.not_negative("tbt_slo_s"));
  if (fields.has("n_sure")) request.n_sure = fields.whole("n_sure");
  if (fields.has("retained_layers")) {
    request.retained_layers = static_cast<std::int32_t>(
        std::min<std::int64_t>(fields.whole("retained_layers"), kMaxLayers + 1));
  }
  return request;
}

QueuedPrompt read_queued(Fields& fields) {
  QueuedPrompt prompt;
  prompt.tokens = Tokens(fields.whole("tokens"));
  if (prompt.tokens < Tokens{1}) fields.fail(fields.path("tokens") + " must be at least 1");
  prompt.done = Tokens(fields.whole("done_tokens", 0));
  prompt.output = fields.whole("output_tokens", 1);
  prompt.begun = fields.flag("begun", prompt.done > Tokens{0});
  if (fields.has("spare_s")) prompt.spare = Seconds(fields.not_negative("spare_s"));
  if (fields.has("left_s")) prompt.left = Seconds(fields.not_negative("left_s"));
  return prompt;
}

std::optional<AdmissionMemory> read_memory(Fields& fields) {
  if (!fields.has("memory")) return std::nullopt;
  Fields inner(fields.raw("memory"), "memory");
  AdmissionMemory memory;
  memory.total = Blocks(inner.whole("total_blocks"));
  memory.free = Blocks(inner.whole("free_blocks"));
  memory.block_tokens = Tokens(inner.whole("block_tokens", memory.block_tokens.value));
  memory.stages = static_cast<std::int32_t>(
      std::min<std::int64_t>(inner.whole("stages", memory.stages), 1'000'000));
  memory.threshold = inner.not_negative("threshold", memory.threshold);
  fields.merge(inner.status());
  return memory;
}

std::optional<StepGuard> read_guard(Fields& fields) {
  if (!fields.has("guard")) return std::nullopt;
  Fields inner(fields.raw("guard"), "guard");
  StepGuard guard;
  guard.step = Seconds(inner.not_negative("step_s"));
  guard.per_request = Seconds(inner.not_negative("step_per_request_s", 0.0));
  guard.tbt_slo = Seconds(inner.not_negative("tbt_slo_s", guard.tbt_slo.count()));
  guard.turns = read_small(inner, "turns", kMaxTurns, 1);
  fields.merge(inner.status());
  return guard;
}

void read_lists(Fields& fields, AdmitQuestion& question) {
  std::set<std::string> seen;
  const auto& decoding = fields.array("decoding", false);
  for (std::size_t i = 0; i < decoding.size(); ++i) {
    Fields one(decoding[i], "decoding[" + std::to_string(i) + "]");
    question.decoding.push_back(read_id(one, seen));
    question.snapshot.decoding.push_back(read_decoding(one));
    fields.merge(one.status());
  }
  const auto& queue = fields.array("queue", false);
  for (std::size_t i = 0; i < queue.size(); ++i) {
    Fields one(queue[i], "queue[" + std::to_string(i) + "]");
    question.queued.push_back(read_id(one, seen));
    question.snapshot.queue.push_back(read_queued(one));
    fields.merge(one.status());
  }
}

Result<AdmitQuestion> read_admit(const Json& json) {
  Fields fields(json, "");
  AdmitQuestion question;
  question.snapshot.costs = read_costs(fields);
  read_lists(fields, question);
  question.snapshot.memory = read_memory(fields);
  question.snapshot.guard = read_guard(fields);
  const auto policy = fields.text("policy", "layerkv");
  KVD_TRY(fields.status());
  KVD_ASSIGN_OR_RETURN(question.policy, all_policies().admission(policy));
  return question;
}

template <class Values, class Show>
OrderedJson by_id(const std::vector<std::string>& ids, const Values& values, Show show) {
  OrderedJson json = OrderedJson::object();
  for (std::size_t i = 0; i < values.size(); ++i) json[ids[i]] = show(values[i]);
  return json;
}

// Adds what the snapshot asked for beyond LayerKV's Algorithm 1.
void add_extras(const AdmitQuestion& question, const AdmissionDecision& decision,
                OrderedJson& json) {
  if (question.snapshot.guard) {
    json["chunk_tokens"] = decision.chunk ? OrderedJson(decision.chunk->value) : nullptr;
  }
  if (decision.forecast.empty()) return;
  json["forecast_blocks"] = OrderedJson::array();
  for (const auto blocks : decision.forecast) json["forecast_blocks"].push_back(blocks.value);
  json["offload_layers"] = by_id(question.decoding, decision.offload_layers, std::identity());
}

}  // namespace

Result<OrderedJson> plan_admit(const Json& snapshot) {
  KVD_ASSIGN_OR_RETURN(const auto question, read_admit(snapshot));
  KVD_ASSIGN_OR_RETURN(const auto decision, question.policy->decide(question.snapshot));
  const auto& ids = question.queued;
  const auto seconds = [](Seconds time) { return time.count(); };
  OrderedJson admit = OrderedJson::array();
  for (std::size_t i = 0; i < decision.admitted; ++i) admit.push_back(ids[i]);
  OrderedJson allow = nullptr;
  if (decision.allow_prefill) allow = decision.allow_prefill->count();
  OrderedJson json = {{"admit", std::move(admit)},
                      {"allow_prefill_s", std::move(allow)},
                      {"prefill_s", by_id(ids, decision.prefill, seconds)},
                      {"retained_layers", by_id(ids, decision.retained_layers, std::identity())},
                      {"offload_s", by_id(ids, decision.offload, seconds)}};
  add_extras(question, decision, json);
  return json;
}

}  // namespace kvd::planner
