#include "tests/engines/schedules/engine_thread.hpp"

#include <algorithm>
#include <random>
#include <utility>

#include "client_lib/engine/serve/own_memory.hpp"

namespace kvd::test {

const engine::Weights& schedule_model() {
  static const engine::Weights weights = engine::random_weights(
      *engine::parse_random_model("layers=4,hidden=32,heads=4,kv_heads=4,head_dim=64,ff=32"));
  return weights;
}

EngineThread::EngineThread(std::unique_ptr<engine::KvMemory> memory,
                           engine::Scheduler::Config config)
    : memory_(std::move(memory)),
      attention_(
          {schedule_model().model.layout(memory_->layers_per_block(), memory_->block_tokens()),
           schedule_model().model.heads},
          workers_),
      transformer_(schedule_model(), memory_->layers_per_block(), attention_, workers_),
      scheduler_(schedule_model(), transformer_, *memory_, delivery_, clock_, config),
      thread_([this] { scheduler_.run(); }) {}

EngineThread::~EngineThread() { stop(); }

void EngineThread::stop() {
  scheduler_.stop();
  if (thread_.joinable()) thread_.join();
}

std::unique_ptr<EngineThread> EngineThread::on_kvd(const std::string& endpoint,
                                                   std::uint32_t layers_per_block,
                                                   engine::Scheduler::Config config,
                                                   std::string identity) {
  auto memory = engine::KvdMemory::attach({.endpoint = endpoint,
                                           .name = "engine",
                                           .layers_per_block = layers_per_block,
                                           .identity = std::move(identity)},
                                          schedule_model().model);
  KVD_CHECK(memory.ok(), memory.ok() ? "" : memory.error().message.c_str());
  return std::make_unique<EngineThread>(std::make_unique<engine::KvdMemory>(std::move(*memory)),
                                        config);
}

EngineThread::Open EngineThread::submit(engine::Completion completion) {
  completion.wants_digests = true;
  Open out{0, std::make_shared<engine::RecordingSink>()};
  const auto number = scheduler_.submit(std::move(completion), out.sink);
  if (number.ok()) {
    out.number = *number;
  } else {
    out.sink->failed(number.error());
  }
  return out;
}

References::References() {
  std::mt19937 random(20);
  const auto& model = schedule_model().model;
  EngineThread engine(
      std::make_unique<engine::OwnMemory>(model.layout(model.layers, 16), model.layers, 0),
      {.pipeline = false});
  std::vector<EngineThread::Open> open;
  for (std::size_t i = 0; i < kPrompts; ++i) {
    std::vector<engine::Token> prompt(20 + random() % 70);
    for (engine::Token& token : prompt) token = random() % 256;
    if (i % 2 == 1) {
      const auto& before = prompts_.back();
      const auto shared =
          static_cast<std::ptrdiff_t>(random() % std::min(before.size(), prompt.size()));
      std::copy_n(before.begin(), shared, prompt.begin());
    }
    prompts_.push_back(prompt);
    open.push_back(engine.submit({.prompt = prompt, .max_tokens = kMostNew}));
  }
  for (const auto& one : open) {
    answers_.push_back(one.sink->end());
    KVD_CHECK(answers_.back().digests.size() == kMostNew, "nothing to compare answers with");
  }
}

std::string References::difference(std::size_t i, const Answer& got, std::uint64_t new_tokens,
                                   bool cut_short) const {
  const Answer& expected = answers_[i];
  if (!cut_short && got.error) return got.error->to_string();
  if (!cut_short && !got.reason) return "no answer in time";
  const std::size_t count = got.tokens.size();
  if (count > new_tokens || (!cut_short && count != new_tokens)) {
    return std::to_string(count) + " tokens instead of " + std::to_string(new_tokens);
  }
  for (std::size_t at = 0; at < count; ++at) {
    if (got.tokens[at] != expected.tokens[at] || got.digests[at] != expected.digests[at]) {
      return "another token " + std::to_string(at) + " of " + std::to_string(count);
    }
  }
  return {};
}

}  // namespace kvd::test
