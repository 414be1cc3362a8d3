#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/admin/journal.hpp"
#include "kvd/core/status.hpp"
#include "kvd/core/tuning.hpp"

namespace kvd::admin {

/// The GPU whose memory the fast tier is.
struct GpuInfo {
  std::string name;
  std::string uuid;     ///< hexadecimal in groups, without "GPU-"
  Bytes context_bytes;  ///< at most what kvd takes of its memory besides the pool
};

/// What a person asks first about a running daemon. No secrets.
struct DaemonInfo {
  std::string version;
  std::string boot_id;  ///< 32 hex digits
  Nanoseconds uptime{0};
  std::string backend;                         ///< "host" | "cuda"
  std::array<std::string, kTiers> page_kinds;  ///< "hugetlb" | "thp" | "4k" | "device", by Tier
  std::string attach_endpoint;
  std::string command_endpoint;
  std::string metrics_endpoint;
  std::optional<GpuInfo> gpu = std::nullopt;  ///< none: the host backend
};

/// What the admin interface needs of the daemon. Called on the REST threads, so every function is
/// thread-safe; those with a timeout hand the question to the control thread and wait for it.
/// Errors: DeadlineExceeded when the control thread does not answer in time, Unavailable while the
///         daemon drains.
class AdminBackend {
 public:
  virtual ~AdminBackend() = default;
  [[nodiscard]] virtual Result<core::ControllerStatus> status(Nanoseconds timeout) = 0;
  /// `tuning` is valid (Tuning::faults() is empty); in force at the next step.
  [[nodiscard]] virtual Status retune(core::Tuning tuning, Nanoseconds timeout) = 0;
  /// The configuration in force as a JSON object, secrets left out.
  [[nodiscard]] virtual Result<std::string> config_json(Nanoseconds timeout) = 0;
  /// Whether engines can attach now.
  [[nodiscard]] virtual bool ready() = 0;
  [[nodiscard]] virtual DaemonInfo info() = 0;
  /// The latest happenings, oldest first; at times of now().
  [[nodiscard]] virtual std::vector<Happening> happenings() = 0;
  [[nodiscard]] virtual TimePoint now() = 0;
};

}  // namespace kvd::admin
