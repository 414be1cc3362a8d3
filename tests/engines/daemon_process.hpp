#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/daemon_process.hpp"

namespace kvd::test {

/// What the daemon says about one engine.
struct EngineReport {
  pid_t pid = 0;
  std::uint64_t bytes = 0;  // level-1 memory it serves to that process
};

/// A real `kvd` on the host backend, with a pool of `slabs` slabs, in a folder of its own.
class DaemonProcess {
 public:
  static constexpr std::uint64_t kSlabBytes = 16ULL << 20U;

  explicit DaemonProcess(int slabs);

  /// Ends it by SIGKILL and starts another one in its place.
  void restart();

  /// The attach socket, for KVD_ENDPOINT.
  [[nodiscard]] const std::string& endpoint() const { return process_->endpoint(); }

  /// The engines attached now, from the daemon's own account.
  [[nodiscard]] std::vector<EngineReport> engines() const;
  /// What the daemon serves to the process; 0: it knows no such engine.
  [[nodiscard]] std::uint64_t bytes_served_to(pid_t engine) const;
  /// Looked at until it does.
  [[nodiscard]] bool comes_to_know(pid_t engine) const;
  /// The same, asked until it is so: what the daemon shows is up to a tenth of a second old.
  [[nodiscard]] bool comes_to_serve(pid_t engine, std::uint64_t bytes) const;
  /// A counter of /v1/status, since the daemon started: "engines_died" are those that went without
  /// a goodbye.
  [[nodiscard]] std::uint64_t counter(const char* name) const;
  /// Waits until the whole pool is free again, scrubbed and all; false: it was not at the deadline.
  [[nodiscard]] bool wait_until_all_returned() const;

 private:
  void start();

  RuntimeFolder folder_;
  KvdSettings settings_;
  std::optional<KvdProcess> process_;
};

/// The sum of kvd's mappings in a process, from /proc/PID/smaps: what the kernel says it holds.
std::uint64_t mapped_pool_bytes(pid_t process);

}  // namespace kvd::test
