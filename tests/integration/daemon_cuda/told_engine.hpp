#pragma once

#include <gtest/gtest.h>

#include <optional>

#include "ipc/vocabulary/layer_mark.hpp"
#include "tests/integration/daemon_cuda/cuda_world.hpp"
#include "tests/unit/client_lib/mini_daemon.hpp"

namespace kvd::test {

/// An engine on the fake GPU that was told by a step to wait. The daemon's side is MiniDaemon,
/// because the test decides here when a copy ends, or that it never does.
class ToldEngine : public testing::Test {
 public:
  static constexpr std::uint64_t kTicket = 7;

 protected:
  ToldEngine() {
    MiniDaemon::Script script;
    script.gpu = gpu_.uuid();
    daemon_.emplace(folder_, script);
  }

  [[nodiscard]] kvd_client::Client open() const {
    kvd_client::Options options;
    options.endpoint = folder_.path("attach.sock");
    options.memory = kvd_client::kCudaMemory;
    options.shape = {4, 0, 0, 2048};
    return std::move(kvd_client::Client::open(options)).value();
  }

  /// An engine that has been told to wait for kTicket, and for streamed layers.
  kvd_client::Client told_to_wait() {
    kvd_client::Client client = open();
    EXPECT_TRUE(
        client.submit({.id = 42, .prompt_tokens = 20, .max_new_tokens = 4}, kPatience).ok());
    daemon_->run_next({42, 0, kTicket, 20, wire::kRunSwappedIn | wire::kRunStreamed, 1, 0},
                      {SlotId(SlabIndex(3), 5), SlotId(SlabIndex(3), 6)});
    const auto step = client.step({}, 0, 0, kPatience);
    EXPECT_TRUE(step.ok());
    iteration_ = step->iteration;
    return client;
  }

  /// Gives the engine a slab and waits until it maps it.
  void lend_slab(std::uint32_t slab) {
    const auto before = daemon_->seen().slabs_acknowledged;
    daemon_->send_slab(slab, gpu_.make_memory(MiniDaemon::kSlabBytes));
    EXPECT_TRUE(daemon_->wait_until(
        [&](const auto& seen) { return seen.slabs_acknowledged == before + 1; }));
  }

  bool becomes_idle() {
    return poll_until([&] { return gpu_.stream_is_idle(); });
  }

  /// The page's word for the first `groups` layer groups of the iteration.
  [[nodiscard]] std::uint64_t mark(std::uint32_t groups) const {
    return layer_mark(iteration_, groups);
  }

  TestGpu gpu_;
  TemporaryFolder folder_;
  std::optional<MiniDaemon> daemon_;
  std::uint64_t iteration_ = 0;
};

}  // namespace kvd::test
