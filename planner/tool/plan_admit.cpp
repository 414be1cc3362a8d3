#include <memory>

#include "planner/policy/admission.hpp"
#include "planner/tool/decisions.hpp"
#include "planner/tool/step_fields.hpp"

namespace kvd::planner {
namespace {

struct Question {
  AdmissionSnapshot snapshot;
  std::vector<std::string> ids;
  std::unique_ptr<AdmissionPolicy> policy;
};

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
  return request;
}

Tokens read_queued(Fields& fields) {
  const Tokens tokens(fields.whole("tokens"));
  if (tokens < Tokens{1}) fields.fail(fields.path("tokens") + " must be at least 1");
  return tokens;
}

void read_lists(Fields& fields, Question& question) {
  std::set<std::string> seen;
  const auto& decoding = fields.array("decoding", false);
  for (std::size_t i = 0; i < decoding.size(); ++i) {
    Fields one(decoding[i], "decoding[" + std::to_string(i) + "]");
    (void)read_id(one, seen);
    question.snapshot.decoding.push_back(read_decoding(one));
    fields.merge(one.status());
  }
  const auto& queue = fields.array("queue", false);
  for (std::size_t i = 0; i < queue.size(); ++i) {
    Fields one(queue[i], "queue[" + std::to_string(i) + "]");
    question.ids.push_back(read_id(one, seen));
    question.snapshot.queue.push_back(read_queued(one));
    fields.merge(one.status());
  }
}

std::unique_ptr<AdmissionPolicy> policy_of(std::size_t choice) {
  if (choice == 2) return std::make_unique<AdmitAllPolicy>();
  return std::make_unique<LayerKvPolicy>(choice == 0 ? LayerKvPolicy::Hopeless::kLeftOut
                                                     : LayerKvPolicy::Hopeless::kCounts);
}

Result<Question> read(const Json& json) {
  Fields fields(json, "");
  Question question;
  question.policy = policy_of(fields.choice("policy", {"layerkv", "layerkv_literal", "none"}));
  question.snapshot.costs = read_costs(fields);
  read_lists(fields, question);
  KVD_TRY(fields.status());
  return question;
}

}  // namespace

Result<OrderedJson> plan_admit(const Json& snapshot) {
  KVD_ASSIGN_OR_RETURN(const auto question, read(snapshot));
  KVD_ASSIGN_OR_RETURN(const auto decision, question.policy->decide(question.snapshot));
  OrderedJson admit = OrderedJson::array();
  OrderedJson prefill = OrderedJson::object(), retained = prefill, offload = prefill;
  for (std::size_t i = 0; i < question.ids.size(); ++i) {
    const auto& id = question.ids[i];
    if (i < decision.admitted) admit.push_back(id);
    prefill[id] = decision.prefill[i].count();
    retained[id] = decision.retained_layers[i];
    offload[id] = decision.offload[i].count();
  }
  OrderedJson allow = nullptr;
  if (decision.allow_prefill) allow = decision.allow_prefill->count();
  return OrderedJson{{"admit", std::move(admit)},
                     {"allow_prefill_s", std::move(allow)},
                     {"prefill_s", std::move(prefill)},
                     {"retained_layers", std::move(retained)},
                     {"offload_s", std::move(offload)}};
}

}  // namespace kvd::planner
