#include "kvd/core/state.hpp"

#include <algorithm>

namespace kvd::core {

const char* name(RequestState state) {
  constexpr const char* kNames[kRequestStates] = {"waiting",      "prefill", "running",
                                                  "swapping_out", "rotary",  "swapping_in"};
  return kNames[static_cast<std::size_t>(state)];
}

Controller::State::State(Config configuration)
    : config(std::move(configuration)),
      tuning(config.tuning),
      rotation(planner::make_rotation_policy(tuning.rotation.policy).value()),
      admission(planner::make_admission_policy(tuning.admission.policy).value()),
      placement(planner::make_placement_policy(tuning.placement.policy).value()),
      hbm(config.hbm, config.hbm_quotas),
      dram(config.dram, config.dram_quotas),
      holds(hbm, dram) {}

void Controller::State::note(Note::Level level, EngineId engine, std::string text) {
  emit(Note{level, engine, std::move(text)});
}

void Controller::State::reply(const Command& command, decltype(Reply::body) body) {
  emit(Reply{command.engine, command.reply_to, std::move(body)});
}

void Controller::State::refuse(const Command& command, ErrorCode code, std::string message) {
  reply(command, make_error(code, std::move(message)));
}

Request* Controller::State::find(EngineId engine, RequestId request) {
  const auto it = requests.find(RequestKey{engine, request});
  return it == requests.end() ? nullptr : &it->second;
}

Bytes Controller::State::hbm_bytes(const Request& request) const {
  if (!request.holds_hbm()) return Bytes(0);
  return sessions.at(request.key.engine).shape.slot_bytes() * request.hbm_slots;
}

std::int64_t Controller::State::most_slots(const pool::TierPool& tier, const Session& session) {
  const std::int64_t a_slab = tier.config().slab_bytes / session.shape.slot_bytes();
  return a_slab * tier.most_slabs(session.info.domain);
}

Tokens Controller::State::most_tokens(const Session& session) const {
  // Divided, never multiplied: a session chooses its shape, and a product of it could wrap.
  const std::int64_t slots = most_slots(hbm, session);
  const std::int64_t groups = session.groups();
  std::int64_t blocks = slots / groups;
  if (layers_may_stream(session)) {
    // A staging set and the open blocks in HBM, everything else in DRAM.
    blocks = std::max(blocks, std::min(slots - 2 * groups, most_slots(dram, session) / groups));
  }
  return Tokens(blocks * session.shape.block_tokens);
}

std::string Controller::State::validate() const {
  if (std::string fault = hbm.validate(); !fault.empty()) return "hbm: " + fault;
  if (std::string fault = dram.validate(); !fault.empty()) return "dram: " + fault;
  if (std::string fault = holds.validate(); !fault.empty()) return fault;

  if (std::string fault = validate_queues(); !fault.empty()) return fault;

  std::size_t used_by[kTiers] = {0, 0};
  for (const auto& [key, request] : requests) {
    if (request.claim != 0 && request.state != RequestState::kWaiting &&
        request.state != RequestState::kRotary) {
      return "a request that holds memory has a claim on more";
    }
    if (request.promised && !request.runs()) return "a request that does not run is promised";
    if (request.copy && !copies.contains(request.copy)) return "a request waits for no copy";
    Request counted = request;
    recount(counted);
    if (counted.hbm_slots != request.hbm_slots || counted.dram_slots != request.dram_slots ||
        counted.doubled != request.doubled) {
      return "a request's slots are not counted right";
    }
    used_by[0] += static_cast<std::size_t>(request.hbm_slots);
    used_by[1] += static_cast<std::size_t>(request.dram_slots);
    for (const BlockPlace& place : request.places) {
      if (place.hbm.none() && place.dram.none()) return "a block is in no tier";
      if (!place.hbm.none() && request.state == RequestState::kRotary) {
        return "a request that was swapped out has blocks in HBM";
      }
    }
    for (const Ticket stream : request.streams) {
      if (!copies.contains(stream)) return "a request waits for no stream";
    }
  }
  for (const auto& [ticket, copy] : copies) used_by[0] += copy.slots.size();
  for (std::size_t tier = 0; tier < kTiers; ++tier) {
    used_by[tier] += holds.slots(static_cast<Tier>(tier));
  }
  const pool::TierStats stats[kTiers] = {hbm.stats(), dram.stats()};
  for (std::size_t tier = 0; tier < kTiers; ++tier) {
    std::uint64_t used = 0;
    for (std::size_t s = 1; s < pool::kSlotStates; ++s) used += stats[tier].slots_by_state[s];
    if (used != used_by[tier]) {
      return std::string(kvd::name(static_cast<Tier>(tier))) + ": " + std::to_string(used) +
             " slots are in use, requests and copies account for " + std::to_string(used_by[tier]);
    }
  }
  return {};
}

}  // namespace kvd::core
