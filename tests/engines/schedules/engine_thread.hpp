#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "client_lib/engine/model/transformer.hpp"
#include "client_lib/engine/serve/kvd_memory.hpp"
#include "client_lib/engine/serve/scheduler.hpp"
#include "kernels/attention/cpu_paged_attention.hpp"
#include "tests/unit/engine/recording_sink.hpp"

namespace kvd::test {

/// A model with little arithmetic and much KV, 8 KiB a token, so that few tokens fill the smallest
/// pool there is (one slab of 2 MiB).
[[nodiscard]] const engine::Weights& schedule_model();
constexpr std::uint32_t kModelLayers = 4;
constexpr std::uint64_t kTokenBytes = 8192;

/// What a user got of a request.
using Answer = engine::RecordingSink::Record;

/// kvd-engine without its HTTP: the scheduler at work on threads of this process.
class EngineThread {
 public:
  EngineThread(std::unique_ptr<engine::KvMemory> memory, engine::Scheduler::Config config);
  ~EngineThread();
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  /// On the kvd at `endpoint`. With an identity of its model it tells what tokens requests have.
  [[nodiscard]] static std::unique_ptr<EngineThread> on_kvd(const std::string& endpoint,
                                                            std::uint32_t layers_per_block,
                                                            engine::Scheduler::Config config,
                                                            std::string identity = {});

  struct Open {
    std::uint64_t number = 0;
    std::shared_ptr<engine::RecordingSink> sink;
  };
  [[nodiscard]] Open submit(engine::Completion completion);
  [[nodiscard]] engine::Scheduler& scheduler() { return scheduler_; }
  /// Ends every request and gives all memory back.
  void stop();

 private:
  const std::unique_ptr<engine::KvMemory> memory_;
  kernels::Workers workers_{1};
  kernels::CpuPagedAttention attention_;
  engine::Transformer transformer_;
  SteadyClock clock_;
  engine::Delivery delivery_{clock_};
  engine::Scheduler scheduler_;
  std::thread thread_;
};

/// Prompts, every second of which begins like the one before it, and their answers when everything
/// is resident in the engine's own memory.
class References {
 public:
  static constexpr std::size_t kPrompts = 40;
  static constexpr std::uint64_t kMostNew = 40;

  References();
  [[nodiscard]] const std::vector<engine::Token>& prompt(std::size_t i) const {
    return prompts_[i];
  }
  [[nodiscard]] const Answer& answer(std::size_t i) const { return answers_[i]; }
  /// Why `got`, of the first `new_tokens` tokens for prompt i, is not the same bit for bit; empty:
  /// it is. An answer that was cut short has to be its beginning.
  [[nodiscard]] std::string difference(std::size_t i, const Answer& got, std::uint64_t new_tokens,
                                       bool cut_short) const;

 private:
  std::vector<std::vector<engine::Token>> prompts_;
  std::vector<Answer> answers_;
};

}  // namespace kvd::test
