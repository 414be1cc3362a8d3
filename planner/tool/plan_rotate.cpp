#include <cmath>

#include "planner/baselines/all_policies.hpp"
#include "planner/tool/decisions.hpp"
#include "planner/tool/step_fields.hpp"

namespace kvd::planner {
namespace {

struct RotateQuestion {
  RotationSnapshot snapshot;
  RotationConfig config;
  Seconds now{0};
  std::vector<std::string> ids;
  std::unique_ptr<RotationPolicy> policy;
};

// To the policy one block is one byte: it only compares and adds. A tier may hold a thousand times
// what a request may.
Bytes read_blocks(Fields& fields, const char* key, std::optional<std::int64_t> otherwise = {}) {
  const auto blocks = fields.whole(key, otherwise);
  if (blocks > kMaxBlocks.value * 1024) fields.fail(fields.path(key) + " must be at most 2^50");
  return Bytes(blocks);
}

std::optional<Seconds> read_time(Fields& fields, const char* key) {
  if (!fields.has(key)) return std::nullopt;
  return Seconds(fields.number(key));
}

void require_time(Fields& fields, const RotationRequest& request) {
  const bool timed = request.state == RequestState::kRunning   ? request.t_run.has_value()
                     : request.state == RequestState::kWaiting ? request.t_arr.has_value()
                                                               : request.t_last || request.t_arr;
  if (timed) return;
  const char* needed = request.state == RequestState::kRunning   ? "t_run_s"
                       : request.state == RequestState::kWaiting ? "t_arr_s"
                                                                 : "t_last_s (or t_arr_s)";
  fields.fail(fields.path(needed) + " is missing");
}

RotationRequest read_request(Fields& fields) {
  constexpr RequestState kStates[] = {RequestState::kWaiting, RequestState::kRunning,
                                      RequestState::kRotary};
  RotationRequest request;
  if (!fields.has("state")) fields.fail(fields.path("state") + " is missing");
  request.state = kStates[fields.choice("state", {"waiting", "running", "rotary"})];
  request.bytes = read_blocks(fields, "blocks");
  if (request.bytes.value > kMaxBlocks.value) {
    fields.fail(fields.path("blocks") + " must be at most 2^40");
  }
  request.t_arr = read_time(fields, "t_arr_s");
  request.t_last = read_time(fields, "t_last_s");
  request.t_run = read_time(fields, "t_run_s");
  require_time(fields, request);
  request.prefilling = fields.flag("prefilling", false);
  request.deposit = fields.whole("deposit", 0);
  request.made_token = fields.flag("made_token", true);
  if (fields.has("output_tokens")) request.output_tokens = Tokens(fields.whole("output_tokens"));
  request.tokens_made = Tokens(fields.whole("tokens_made", 0));
  request.prefill = Seconds(fields.not_negative("prefill_s", 0.0));
  if (fields.has("gap_s")) request.gap = Seconds(fields.not_negative("gap_s", 0.0));
  if (fields.has("place")) {
    const auto place = std::min<std::int64_t>(fields.whole("place"), UINT32_MAX);
    request.place = static_cast<std::uint32_t>(place);
  }
  const auto skips = fields.whole("skips", 0);
  request.skips = static_cast<std::int32_t>(std::min<std::int64_t>(skips, INT32_MAX));
  return request;
}

void read_requests(Fields& fields, RotateQuestion& question, Seconds s_b, Seconds s_f) {
  std::set<std::string> seen;
  const auto& requests = fields.array("requests", true);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    Fields one(requests[i], "requests[" + std::to_string(i) + "]");
    question.ids.push_back(read_id(one, seen));
    auto request = read_request(one);
    request.tbt_slo = Seconds(one.not_negative("s_b_s", s_b.count()));
    request.ttft_slo = Seconds(one.not_negative("s_f_s", s_f.count()));
    question.snapshot.requests.push_back(request);
    fields.merge(one.status());
  }
}

void read_dram(Fields& fields, RotationSnapshot& snapshot) {
  const bool gated = fields.has("dram_total_blocks");
  const Bytes free = read_blocks(fields, "dram_free_blocks",
                                 gated ? std::nullopt : std::optional(std::int64_t{0}));
  if (!gated) return;
  snapshot.dram = DramUse{read_blocks(fields, "dram_total_blocks"), free};
  if (free > snapshot.dram->total) {
    fields.fail("dram_free_blocks must not exceed dram_total_blocks");
  }
}

Result<RotateQuestion> read_rotate(const Json& json) {
  Fields fields(json, "");
  RotateQuestion question;
  auto& config = question.config;
  question.now = Seconds(fields.number("now_s"));
  config.alpha = fields.not_negative("alpha", config.alpha);
  config.beta_b = fields.number("beta_b", config.beta_b);
  config.beta_f = fields.number("beta_f", config.beta_f);
  config.paper = fields.flag("paper", false);
  config.overload =
      fields.choice("overload", {"ttft", "goodput"}) == 0 ? Overload::kTtft : Overload::kGoodput;
  question.snapshot.step = Seconds(fields.not_negative("step_s", 0.0));
  question.snapshot.tokens_per_s = fields.not_negative("tokens_per_s", 0.0);
  question.snapshot.mean_lateness = Seconds(fields.not_negative("mean_lateness_s", 0.0));
  const Seconds s_b(fields.not_negative("s_b_s", 0.1));
  const Seconds s_f(fields.not_negative("s_f_s", 5.0));
  question.snapshot.b_hbm = read_blocks(fields, "b_hbm");
  question.snapshot.b_xfer = read_blocks(fields, "b_xfer");
  question.snapshot.growth = read_blocks(fields, "growth_blocks", 0);
  read_dram(fields, question.snapshot);
  read_requests(fields, question, s_b, s_f);
  const auto policy = fields.text("policy", "lvf");
  KVD_TRY(fields.status());
  KVD_ASSIGN_OR_RETURN(question.policy, all_policies().rotation(policy));
  return question;
}

OrderedJson names(const RotateQuestion& question, const std::vector<std::uint32_t>& indices) {
  OrderedJson json = OrderedJson::array();
  for (const auto index : indices) json.push_back(question.ids[index]);
  return json;
}

OrderedJson blocks_json(const std::optional<Bytes>& blocks) {
  return blocks ? OrderedJson(blocks->value) : OrderedJson(nullptr);
}

}  // namespace

Result<OrderedJson> plan_rotate(const Json& snapshot) {
  KVD_ASSIGN_OR_RETURN(const auto question, read_rotate(snapshot));
  const auto& decision = question.policy->decide(question.snapshot, question.now, question.config);
  OrderedJson vlt = OrderedJson::object();
  for (std::size_t i = 0; i < question.ids.size(); ++i) {
    if (!std::isfinite(decision.vlt_s[i])) {
      return make_error(ErrorCode::kInvalidArgument,
                        "the lag of \"" + question.ids[i] + "\" leaves the range of numbers");
    }
    vlt[question.ids[i]] = decision.vlt_s[i];
  }
  OrderedJson json = {{"prioritized", names(question, decision.prioritized)},
                      {"preempted", names(question, decision.preempted)},
                      {"vlt_s", std::move(vlt)},
                      {"contention", decision.contention},
                      {"b_left", blocks_json(decision.b_left)},
                      {"b_swap", blocks_json(decision.b_swap)}};
  if (!decision.layerwise.empty()) json["layerwise"] = names(question, decision.layerwise);
  return json;
}

}  // namespace kvd::planner
