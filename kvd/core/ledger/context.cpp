#include "kvd/core/ledger/context.hpp"

namespace kvd::core {

Context::Context(Config configuration)
    : config(std::move(configuration)),
      tuning(config.tuning),
      rotation(config.policies->rotation(tuning.rotation.policy).value()),
      admission(config.policies->admission(tuning.admission.policy).value()),
      placement(config.policies->placement(tuning.placement.policy).value()),
      load(planner::make_load_policy(tuning.load.policy).value()) {}

void Context::pass_on_orders() {
  orders.drain([this](auto order) { effects->emplace_back(std::move(order)); });
}

void Context::note(Note::Level level, EngineId engine, std::string text) {
  emit(Note{level, engine, std::move(text)});
}

void Context::reply(const Command& command, decltype(Reply::body) body) {
  emit(Reply{command.engine, command.reply_to, std::move(body)});
}

void Context::refuse(const Command& command, ErrorCode code, std::string message) {
  reply(command, make_error(code, std::move(message)));
}

planner::RotationConfig Context::rotation_config() const {
  const RotationTuning& r = tuning.rotation;
  const bool goodput = r.overload == "goodput";
  return {r.alpha, r.beta_b, r.beta_f, false,
          goodput ? planner::Overload::kGoodput : planner::Overload::kTtft};
}

void Context::retune(const Tuning& wanted) {
  if (wanted.rotation.policy != tuning.rotation.policy) {
    rotation = config.policies->rotation(wanted.rotation.policy).value();
  }
  if (wanted.admission.policy != tuning.admission.policy) {
    admission = config.policies->admission(wanted.admission.policy).value();
  }
  if (wanted.placement.policy != tuning.placement.policy) {
    placement = config.policies->placement(wanted.placement.policy).value();
  }
  if (wanted.load.policy != tuning.load.policy) {
    load = planner::make_load_policy(wanted.load.policy).value();
  }
  tuning = wanted;
}

}  // namespace kvd::core
