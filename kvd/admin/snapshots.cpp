#include "kvd/admin/snapshots.hpp"

#include <algorithm>

#include "kvd/admin/json.hpp"

namespace kvd::admin {
namespace {

std::string id_of(const RequestKey& key) {
  return std::to_string(key.engine.value) + "/" + std::to_string(key.request.value);
}

Json rotating(const planner::RotationRequest& request, const RequestKey& key) {
  constexpr const char* kStates[] = {"waiting", "running", "rotary"};
  Json json = {{"id", id_of(key)},
               {"state", kStates[static_cast<std::size_t>(request.state)]},
               {"blocks", request.bytes.value},
               {"prefilling", request.prefilling},
               {"made_token", request.made_token},
               {"skips", request.skips},
               {"deposit", request.deposit},
               {"tokens_made", request.tokens_made.value},
               {"prefill_s", request.prefill.count()},
               {"s_b_s", request.tbt_slo.count()},
               {"s_f_s", request.ttft_slo.count()}};
  if (request.output_tokens) json["output_tokens"] = request.output_tokens->value;
  if (request.place) json["place"] = *request.place;
  if (request.t_arr) json["t_arr_s"] = request.t_arr->count();
  if (request.t_last) json["t_last_s"] = request.t_last->count();
  if (request.t_run) json["t_run_s"] = request.t_run->count();
  return json;
}

Json rotation(const core::RotationInput& input, const core::Tuning& tuning) {
  const auto& snapshot = input.snapshot;
  // Only the difference of the two matters, and kvd-plan knows no negative blocks.
  const Bytes lacking = std::max(Bytes(0), Bytes(0) - snapshot.b_hbm);
  Json requests = Json::array();
  for (std::size_t i = 0; i < input.requests.size(); ++i) {
    requests.push_back(rotating(snapshot.requests[i], input.requests[i]));
  }
  Json json = {
      {"policy", tuning.rotation.policy},
      {"now_s", input.now.count()},
      {"alpha", input.config.alpha},
      {"beta_b", input.config.beta_b},
      {"beta_f", input.config.beta_f},
      {"overload", input.config.overload == planner::Overload::kGoodput ? "goodput" : "ttft"},
      {"b_hbm", (snapshot.b_hbm + lacking).value},
      {"b_xfer", std::max(Bytes(0), snapshot.b_xfer).value},
      {"growth_blocks", (snapshot.growth + lacking).value},
      {"mean_lateness_s", snapshot.mean_lateness.count()},
      {"step_s", snapshot.step.count()}};
  if (snapshot.dram) {
    json["dram_total_blocks"] = snapshot.dram->total.value;
    json["dram_free_blocks"] =
        std::clamp(snapshot.dram->free, Bytes(0), snapshot.dram->total).value;
  }
  json["requests"] = std::move(requests);
  return json;
}

Json admission(const core::AdmissionInput& input, const core::Tuning& tuning) {
  const auto& snapshot = input.snapshot;
  const auto& costs = snapshot.costs;
  Json decoding = Json::array(), queue = Json::array();
  for (std::size_t i = 0; i < input.decoding.size(); ++i) {
    const auto& request = snapshot.decoding[i];
    Json one = {{"id", id_of(input.decoding[i])},
                {"tpot_slo_s", request.tpot_slo.count()},
                {"n_past", request.n_past},
                {"t_past_s", request.t_past.count()},
                {"n_future", request.n_future},
                {"tpot_s", request.tpot.count()},
                {"prompt_tokens", request.prompt.value},
                {"deposit", request.deposit}};
    if (request.tbt_slo) one["tbt_slo_s"] = request.tbt_slo->count();
    if (request.n_sure) one["n_sure"] = *request.n_sure;
    decoding.push_back(std::move(one));
  }
  for (std::size_t i = 0; i < input.queue.size(); ++i) {
    const auto& prompt = snapshot.queue[i];
    Json one = {{"id", id_of(input.queue[i])},
                {"tokens", prompt.tokens.value},
                {"done_tokens", prompt.done.value},
                {"begun", prompt.begun},
                {"output_tokens", prompt.output}};
    if (prompt.left) one["left_s"] = prompt.left->count();
    if (prompt.spare) one["spare_s"] = prompt.spare->count();
    queue.push_back(std::move(one));
  }
  Json json = {{"policy", tuning.admission.policy},
               {"layers", costs.layers},
               {"alpha", costs.alpha},
               {"beta", costs.beta},
               {"flops_per_s", costs.flops_per_s},
               {"link_bytes_per_s", costs.link.value},
               {"params", costs.params},
               {"hidden", costs.hidden},
               {"kv_heads", costs.kv_heads},
               {"head_dim", costs.head_dim},
               {"precision_bytes", costs.precision_bytes}};
  if (snapshot.memory) {
    json["memory"] = {{"total_blocks", snapshot.memory->total.value},
                      {"free_blocks", snapshot.memory->free.value},
                      {"block_tokens", snapshot.memory->block_tokens.value}};
  }
  if (snapshot.guard) {
    json["guard"] = {{"step_s", snapshot.guard->step.count()},
                     {"step_per_request_s", snapshot.guard->per_request.count()},
                     {"tbt_slo_s", snapshot.guard->tbt_slo.count()},
                     {"turns", snapshot.guard->turns}};
  }
  json["decoding"] = std::move(decoding);
  json["queue"] = std::move(queue);
  return json;
}

Json placement(const core::PlacementInput& input, const core::Tuning& tuning) {
  const auto& snapshot = input.snapshot;
  Json compute = Json::array(), requests = Json::array();
  for (const auto time : snapshot.model.compute) compute.push_back(time.count());
  for (std::size_t i = 0; i < input.requests.size(); ++i) {
    const auto& request = snapshot.requests[i];
    Json one = {{"id", id_of(input.requests[i])},
                {"blocks", request.blocks.value},
                {"deposit", request.deposit}};
    if (request.tokens) one["tokens"] = request.tokens->value;
    if (request.slo) one["slo_s"] = request.slo->count();
    requests.push_back(std::move(one));
  }
  const auto& p = tuning.placement;
  return {{"policy", p.policy},
          {"layers", snapshot.model.layers()},
          {"compute_s", std::move(compute)},
          {"link_blocks_per_s", 1 / snapshot.model.per_block.count()},
          {"capacity_blocks", snapshot.capacity.value},
          {"block_tokens", snapshot.block_tokens.value},
          {"open_blocks", snapshot.open_blocks},
          {"alpha", p.alpha},
          {"window", {{"min", p.window_min}, {"max", p.window_max}}},
          {"budget_nodes", core::kPlaceNodes},
          {"requests", std::move(requests)}};
}

template <class Inputs, class Write>
std::string document(const Inputs& inputs, const core::Tuning& tuning, Write write) {
  Json snapshots = Json::array();
  for (const auto& input : inputs) snapshots.push_back(write(input, tuning));
  return to_text({{"snapshots", std::move(snapshots)}});
}

}  // namespace

std::optional<std::string> snapshot_document(const core::ControllerStatus& status,
                                             std::string_view kind) {
  if (kind == "rotate") return document(status.rotation_inputs, status.tuning, rotation);
  if (kind == "admit") return document(status.admission_inputs, status.tuning, admission);
  if (kind == "place") return document(status.placement_inputs, status.tuning, placement);
  return std::nullopt;
}

}  // namespace kvd::admin
