#include <algorithm>
#include <set>

#include "kvd/core/state.hpp"

/// What a placement policy is asked, and the `place` command: what it would do with a batch now.
/// The plan in force is made in layer_plan.cpp.
namespace kvd::core {

planner::PlacementConfig Controller::State::placement_config() const {
  planner::PlacementConfig out;
  out.alpha = tuning.placement.alpha;
  out.window_min = tuning.placement.window_min;
  out.window_max = tuning.placement.window_max;
  out.budget_nodes = kPlaceNodes;
  return out;
}

// Until a step is measured it takes as long as its goal allows.
PlacementInput Controller::State::placement_input(Session& session,
                                                  const std::vector<RequestKey>& keys) {
  PlacementInput input;
  auto& snapshot = input.snapshot;
  const Bytes slot = session.shape.slot_bytes();
  Bytes holding;
  Nanoseconds step = Nanoseconds::max();
  Tokens tokens;
  for (const RequestKey& key : keys) {
    const auto found = requests.find(key);
    if (found == requests.end()) continue;
    Request& r = found->second;
    input.requests.push_back(key);
    holding += hbm_bytes(r);
    step = std::min(step, r.slo.tbt);
    planner::PlacementRequest one;
    one.tokens = r.room_to_run();
    one.blocks = Blocks(session.blocks_for(*one.tokens));
    one.slo = planner::Seconds(r.slo.tbt);
    one.deposit = tuning.placement.deposit ? saved_up(r) : 0;
    if (!r.away.empty()) one.current = offloaded_layers(r);
    tokens += *one.tokens;
    snapshot.requests.push_back(std::move(one));
  }
  // Paused requests make way but for their open blocks.
  each_request_of(session.id, [&](const Request& r) {
    if (!r.paused || std::find(keys.begin(), keys.end(), r.key) != keys.end()) return;
    holding += slot * std::max<std::int64_t>(0, r.hbm_slots() - std::int64_t{session.groups()});
  });
  const planner::Seconds whole =
      session.compute.measured()
          ? planner::Seconds(std::max(1e-6, session.compute.at(static_cast<double>(tokens.value))))
          : planner::Seconds(step);
  snapshot.model.compute.assign(session.groups(), whole / static_cast<double>(session.groups()));
  snapshot.model.per_block = planner::Seconds(static_cast<double>(slot.value) / fetch_rate());
  snapshot.capacity =
      Blocks(std::max(Bytes(0), hbm.available(session.info.domain) + holding) / slot);
  snapshot.block_tokens = Tokens(session.shape.block_tokens);
  snapshot.open_blocks = true;
  return input;
}

std::vector<std::int32_t> Controller::State::offloaded_layers(const Request& request) {
  std::vector<std::int32_t> layers;
  for (std::size_t group = 0; group < request.away.size(); ++group) {
    if (request.away[group]) layers.push_back(static_cast<std::int32_t>(group + 1));
  }
  return layers;
}

// Solved by the solver, as plans are: the control thread never waits for it.
void Controller::State::on_place(const Command& command, const Place& place) {
  Session& session = sessions.at(command.engine);
  if (!session.class_id) {
    refuse(command, ErrorCode::kInvalidArgument, "a session without a model class has no blocks");
    return;
  }
  if (session.place) {
    refuse(command, ErrorCode::kWouldBlock,
           "the answer to the last place is being worked out: wait");
    return;
  }
  std::vector<RequestKey> keys;
  std::set<RequestId> seen;
  for (const RequestId id : place.requests) {
    const std::string name = "request " + std::to_string(id.value);
    if (!find(session.id, id)) {
      refuse(command, ErrorCode::kNotFound, name + " is not this session's");
      return;
    }
    if (!seen.insert(id).second) {
      refuse(command, ErrorCode::kInvalidArgument, name + " is named twice: name each once");
      return;
    }
    keys.push_back({session.id, id});
  }
  if (place.requests.empty()) {
    each_request_of(session.id, [&](Request& r) {
      if (r.runs()) keys.push_back(r.key);
    });
  }
  PlacementInput input = placement_input(session, keys);
  if (keys.empty()) {
    PlaceReply out;
    out.budget = input.snapshot.capacity;
    reply(command, std::move(out));
    return;
  }
  emit(SolvePlacement{session.id, 0, true, tuning.placement.policy, input.snapshot,
                      placement_config()});
  session.place = PendingPlace{command.reply_to, tuning.placement.policy, std::move(input)};
}

void Controller::State::answer_place(Session& session,
                                     const Result<planner::PlacementDecision>& decision) {
  if (!session.place) return;
  const PendingPlace place = std::move(*session.place);
  session.place.reset();
  const auto answer = [&](decltype(Reply::body) body) {
    emit(Reply{session.id, place.reply_to, std::move(body)});
  };
  if (!decision.ok()) return answer(decision.error());
  const PlacementInput& input = place.input;
  PlaceReply out;
  out.budget = input.snapshot.capacity;
  const auto layers = static_cast<std::int64_t>(input.snapshot.model.layers());
  const bool late_only = !decision->feasible && !decision->placement.empty() &&
                         decision->reason == planner::InfeasibleReason::kSlo;
  if (!decision->feasible && !late_only) {
    std::string message = "the batch does not fit the " + std::to_string(out.budget.value) +
                          " blocks in HBM that can be had under placement policy \"" +
                          place.policy + "\": place fewer requests";
    if (decision->victim) {
      message += ", first without request " +
                 std::to_string(input.requests[*decision->victim].request.value);
    }
    return answer(make_error(ErrorCode::kInfeasible, std::move(message)));
  }
  for (std::size_t i = 0; i < input.requests.size(); ++i) {
    const auto& placed = decision->placement[i];
    const auto resident = layers - static_cast<std::int64_t>(placed.offloaded.size());
    out.entries.push_back({input.requests[i].request,
                           static_cast<std::uint32_t>(placed.distance.value_or(0)),
                           input.snapshot.requests[i].blocks * resident});
  }
  answer(std::move(out));
}

}  // namespace kvd::core
