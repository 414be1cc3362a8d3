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
      tiers({config.hbm, config.dram, config.hbm_quotas, config.dram_quotas}, orders),
      blocks(tiers),
      transfers(orders),
      hbm(tiers.pool(Tier::kHbm)),
      dram(tiers.pool(Tier::kDram)) {}

void Controller::State::pass_on_orders() {
  orders.drain([this](auto order) { effects->emplace_back(std::move(order)); });
}

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
  return sessions.at(request.key.engine).shape.slot_bytes() * request.hbm_slots();
}

std::int64_t Controller::State::most_slots(const pool::TierPool& tier, const Session& session) {
  const std::int64_t a_slab = tier.config().slab_bytes / session.shape.slot_bytes();
  return a_slab * tier.most_slabs(session.info.domain);
}

Tokens Controller::State::most_tokens(const Session& session) const {
  // Divided, never multiplied: a session chooses its shape, and a product of it could wrap.
  const std::int64_t slots = most_slots(hbm, session);
  const std::int64_t groups = session.groups();
  std::int64_t most = slots / groups;
  if (layers_may_stream(session)) {
    // A staging set and the open blocks in HBM, everything else in DRAM.
    most = std::max(most, std::min(slots - 2 * groups, most_slots(dram, session) / groups));
  }
  return Tokens(most * session.shape.block_tokens);
}

std::string Controller::State::validate() const {
  if (std::string fault = tiers.validate(); !fault.empty()) return fault;
  if (std::string fault = blocks.validate(); !fault.empty()) return fault;
  if (std::string fault = validate_queues(); !fault.empty()) return fault;
  std::size_t staged = 0, counted[kTiers] = {0, 0};
  for (const auto& [key, request] : requests) {
    if (std::string fault = validate(request); !fault.empty()) return fault;
    staged += static_cast<std::size_t>(request.staging.count());
    counted[0] += static_cast<std::size_t>(request.table.in(Tier::kHbm));
    counted[1] += static_cast<std::size_t>(request.table.in(Tier::kDram));
  }
  for (const Tier tier : {Tier::kHbm, Tier::kDram}) {
    const std::size_t owned = counted[static_cast<std::size_t>(tier)];
    if (owned != blocks.slots(tier)) return "a block is nobody's";
    const std::size_t known = owned + tiers.slots(tier) + (tier == Tier::kHbm ? staged : 0);
    const pool::TierStats stats = tiers.pool(tier).stats();
    std::uint64_t used = 0;
    for (std::size_t s = 1; s < pool::kSlotStates; ++s) used += stats.slots_by_state[s];
    if (used != known) {
      return std::string(kvd::name(tier)) + ": " + std::to_string(used) +
             " slots are in use, blocks, staging and holds account for " + std::to_string(known);
    }
  }
  return {};
}

std::string Controller::State::validate(const Request& request) const {
  if (request.claim != 0 && request.state != RequestState::kWaiting &&
      request.state != RequestState::kRotary) {
    return "a request that holds memory has a claim on more";
  }
  if (request.promised && !request.runs()) return "a request that does not run is promised";
  for (const Ticket ticket : {request.copy, request.sync, request.fetch}) {
    if (ticket && !transfers.open(ticket)) return "a request waits for no transfer";
  }
  for (const Ticket stream : request.streams) {
    if (!transfers.streams(stream)) return "a request waits for no stream";
  }
  if (request.state == RequestState::kRotary && request.table.in(Tier::kHbm) > 0) {
    return "a request that was swapped out has blocks in HBM";
  }
  return blocks.validate(request.table);
}

}  // namespace kvd::core
