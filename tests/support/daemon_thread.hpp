#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "kvd/daemon/daemon.hpp"
#include "tests/support/patience.hpp"
#include "tests/support/runtime_folder.hpp"

namespace kvd::test {

/// Real time plus what the test adds, so that no test waits for a deadline of seconds.
class ShiftedClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override { return steady_.now() + Nanoseconds(shift_); }
  void advance(Nanoseconds by) { shift_ += by.count(); }

 private:
  SteadyClock steady_;
  std::atomic<std::int64_t> shift_ = 0;
};

/// The daemon in this process, its control thread beside the test's: 16 MiB of HBM and 32 MiB of
/// DRAM in slabs of 2 MiB, no HTTP servers.
class DaemonThread {
 public:
  using Edit = std::function<void(daemon::Config&)>;

  explicit DaemonThread(const Edit& edit = {});
  /// Stops it, as SIGTERM does.
  ~DaemonThread();
  DaemonThread(const DaemonThread&) = delete;
  DaemonThread& operator=(const DaemonThread&) = delete;

  [[nodiscard]] daemon::Daemon& daemon() { return *daemon_; }
  [[nodiscard]] const RuntimeFolder& folder() const { return folder_; }
  [[nodiscard]] std::string endpoint() const { return folder_.file("attach.sock"); }
  [[nodiscard]] std::string command_socket() const { return folder_.file("command.sock"); }
  [[nodiscard]] ShiftedClock& clock() { return clock_; }

  [[nodiscard]] core::ControllerStatus status();
  /// Whether the status came to satisfy the condition before kPatience was over.
  [[nodiscard]] bool wait_until(const std::function<bool(const core::ControllerStatus&)>& holds);
  /// All memory of both tiers free again, zeroed and all.
  [[nodiscard]] bool wait_all_free();

 private:
  RuntimeFolder folder_;
  ShiftedClock clock_;
  std::unique_ptr<daemon::Daemon> daemon_;
  std::thread thread_;
};

/// The engine of that name; none: not there.
[[nodiscard]] std::optional<core::EngineStatus> engine_named(const core::ControllerStatus& status,
                                                             const std::string& name);
/// Whether nothing is allocated, quarantined or being zeroed in either tier, apart from cached
/// blocks, which make way for anybody.
[[nodiscard]] bool all_free(const core::ControllerStatus& status);

}  // namespace kvd::test
