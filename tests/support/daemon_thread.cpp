#include "tests/support/daemon_thread.hpp"

#include "kvd/daemon/base/log.hpp"

namespace kvd::test {
namespace {

daemon::Config small_config(const RuntimeFolder& folder) {
  daemon::Config config;
  config.backend = daemon::BackendChoice::kHost;
  config.runtime_dir = folder.path();
  config.attach_socket = folder.file("attach.sock");
  config.command_socket = folder.file("command.sock");
  config.token_file = folder.file("admin.token");
  config.hbm = 16 * kMiB;
  config.dram = 32 * kMiB;
  config.slab = 2 * kMiB;
  config.reserve = Bytes(0);
  config.admin_address.clear();
  config.metrics_address.clear();
  config.promptness.realtime = false;  // beside the test's own threads
  return config;
}

}  // namespace

DaemonThread::DaemonThread(const Edit& edit) {
  daemon::set_log_level("error");
  daemon::Config config = small_config(folder_);
  if (edit) edit(config);
  auto made = daemon::Daemon::create(std::move(config), clock_);
  KVD_CHECK(made.ok(), made.ok() ? "" : made.error().message.c_str());
  daemon_ = std::move(*made);
  thread_ = std::thread([this] { (void)daemon_->run().ok(); });
}

DaemonThread::~DaemonThread() {
  daemon_->stop();
  thread_.join();
}

core::ControllerStatus DaemonThread::status() {
  auto status = daemon_->status(kPatience);
  KVD_CHECK(status.ok(), "the control thread does not answer");
  return std::move(*status);
}

bool DaemonThread::wait_until(const std::function<bool(const core::ControllerStatus&)>& holds) {
  return poll_until([&] { return holds(status()); });
}

bool DaemonThread::wait_all_free() { return wait_until(all_free); }

bool all_free(const core::ControllerStatus& status) {
  for (std::size_t t = 0; t < kTiers; ++t) {
    const pool::TierStats& tier = status.tiers[t];
    if (tier.region > Bytes(0) || tier.quarantined > Bytes(0)) return false;
    for (std::size_t s = 0; s < tier.slots_by_state.size(); ++s) {
      const auto state = static_cast<pool::SlotState>(s);
      const bool cached = state == pool::SlotState::kSealed && status.cached[t] > Bytes(0);
      const bool idle = cached || state == pool::SlotState::kFree;
      if (!idle && tier.slots_by_state[s] != 0) return false;
    }
  }
  // Slabs being zeroed come back only when they are.
  for (const auto& slabs : status.slabs) {
    for (const pool::SlabView& slab : slabs) {
      if (slab.use == pool::SlabUse::kDirty || slab.use == pool::SlabUse::kScrubbing) return false;
    }
  }
  return status.requests.empty();
}

std::optional<core::EngineStatus> engine_named(const core::ControllerStatus& status,
                                               const std::string& name) {
  for (const core::EngineStatus& engine : status.engines) {
    if (engine.name == name) return engine;
  }
  return std::nullopt;
}

}  // namespace kvd::test
