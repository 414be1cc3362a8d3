#pragma once

#include <memory>
#include <optional>
#include <string>

#include "client_lib/engine/model/hyperparameters.hpp"
#include "client_lib/engine/serve/announcer.hpp"
#include "client_lib/engine/serve/kv_memory.hpp"
#include "kvd_client/client.hpp"

namespace kvd::engine {

/// KV in kvd's pool; kvd decides who runs (level 3).
/// Errors: Unavailable after the daemon went: the next call attaches again, to another daemon life.
class KvdMemory final : public KvMemory {
 public:
  struct Options {
    std::string endpoint;  ///< empty: $KVD_ENDPOINT, else the default path
    std::string name;
    std::uint32_t layers_per_block = 0;  ///< 0: kvd chooses
    std::uint32_t block_tokens = 0;
    /// Equal only for equal weights; empty: prompts are not looked up.
    std::string identity = {};
    std::optional<events::Publisher::Config> events = {};  ///< none: nobody hears of blocks
  };
  [[nodiscard]] static Result<KvdMemory> attach(const Options& options,
                                                const Hyperparameters& model);

  [[nodiscard]] std::uint32_t layers_per_block() const override;
  [[nodiscard]] std::uint32_t block_tokens() const override;

  Status submit(const kvd_client::Request& request) override;
  Status abort(std::uint64_t request) override;
  Status extend(std::uint64_t request, std::span<const Token> tokens) override;
  Result<Grant> step(std::span<const kvd_client::StepReport> reports, bool running) override;
  Result<Waited> ready(const Grant& grant, std::uint32_t group) override;
  Status done(const Grant& grant, std::uint32_t group) override;
  Status intact() override;
  Status wait_for_room() override;
  Status ping() override;

 private:
  KvdMemory(kvd_client::Client client, kvd_client::SessionInfo session)
      : client_(std::move(client)), session_(session) {}
  Status follow_session(bool running);
  Result<Run> run_of(const kvd_client::RunEntry& entry);

  kvd_client::Client client_;
  kvd_client::SessionInfo session_;  ///< session of the last step; later ones have the same shape
  std::uint64_t iteration_ = 0;      ///< the last one granted in it
  std::unique_ptr<Announcer> announcer_;  ///< null: nobody hears of blocks
};

}  // namespace kvd::engine
