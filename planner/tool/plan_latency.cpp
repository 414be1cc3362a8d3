#include "planner/model/memory.hpp"
#include "planner/tool/decisions.hpp"
#include "planner/tool/step_fields.hpp"

namespace kvd::planner {
namespace {

struct LatencyQuestion {
  StepModel model;
  bool even = false;
  std::vector<StreamedRequest> requests;
};

StreamedRequest read_request(const Json& json, std::size_t index, const StepModel& model,
                             std::set<std::string>& seen, Fields& all) {
  Fields fields(json, "requests[" + std::to_string(index) + "]");
  StreamedRequest request;
  (void)read_id(fields, seen);
  request.blocks = Blocks(fields.whole("blocks"));
  request.offloaded = read_layers(fields, "offloaded", model.layers());
  all.merge(fields.status());
  all.merge(check(model, request));
  return request;
}

Result<LatencyQuestion> read_latency(const Json& json) {
  Fields fields(json, "");
  LatencyQuestion question;
  question.model = read_step_model(fields);
  question.even = fields.choice("sharing", {"edf", "even"}) == 1;
  std::set<std::string> seen;
  const auto& requests = fields.array("requests", true);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    question.requests.push_back(read_request(requests[i], i, question.model, seen, fields));
  }
  if (requests.empty()) fields.fail("requests must not be empty");
  KVD_TRY(fields.status());
  KVD_TRY(check(question.model));
  return question;
}

}  // namespace

Result<OrderedJson> plan_latency(const Json& snapshot) {
  KVD_ASSIGN_OR_RETURN(const auto question, read_latency(snapshot));
  const auto& model = question.model;
  const auto latency = question.even ? even_sharing_latency(model, question.requests)
                                     : edf_latency(model, question.requests);
  const auto memory = placement_memory(model.layers(), question.requests);
  Seconds compute{0}, stall{0};
  for (const auto time : model.compute) compute += time;
  for (const auto time : latency.stalls) stall += time;
  return OrderedJson{{"latency_s", latency.total.count()},
                     {"compute_total_s", compute.count()},
                     {"stall_s", stall.count()},
                     {"stalls_s", in_seconds(latency.stalls)},
                     {"resident_blocks", memory.resident.value},
                     {"buffer_eq1_blocks", memory.staging_eq1.value},
                     {"buffer_strict_blocks", memory.staging_strict.value},
                     {"fetched_blocks", memory.fetched.value}};
}

}  // namespace kvd::planner
