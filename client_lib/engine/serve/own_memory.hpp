#pragma once

#include <map>
#include <memory>

#include "client_lib/engine/serve/kv_memory.hpp"
#include "kernels/attention/kv_layout.hpp"

namespace kvd::engine {

/// KV in this process's own memory, nothing ever moved: what every run on kvd is compared with.
/// Everybody submitted runs in every iteration.
class OwnMemory final : public KvMemory {
 public:
  /// `chunk`: most tokens of a prompt an iteration takes; 0: all.
  OwnMemory(const kernels::KvLayout& layout, std::uint32_t layers, std::uint32_t chunk);

  [[nodiscard]] std::uint32_t layers_per_block() const override { return layout_.layers_per_block; }
  [[nodiscard]] std::uint32_t block_tokens() const override { return layout_.block_tokens; }

  Status submit(const kvd_client::Request& request) override;
  Status abort(std::uint64_t request) override;
  Status extend(std::uint64_t, std::span<const Token>) override { return {}; }
  Result<Grant> step(std::span<const kvd_client::StepReport> reports, bool running) override;
  Result<Waited> ready(const Grant&, std::uint32_t) override { return Waited::kNo; }
  Status done(const Grant&, std::uint32_t) override { return {}; }
  Status intact() override { return {}; }
  Status wait_for_room() override { return {}; }
  Status ping() override { return {}; }

 private:
  struct Held {
    std::uint64_t prompt = 0;
    std::uint64_t planned = 0;  ///< tokens whose KV is complete once all grants have run
    std::vector<std::vector<std::unique_ptr<std::byte[]>>> groups;  ///< [group][block]
  };
  Run grant(std::uint64_t request, Held& held) const;

  const kernels::KvLayout layout_;
  const std::uint32_t groups_;
  const std::uint32_t chunk_;
  std::map<std::uint64_t, Held> held_;
  std::uint64_t iteration_ = 0;
};

}  // namespace kvd::engine
