#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/admin/journal.hpp"
#include "kvd/admin/link/channel.hpp"
#include "kvd/admin/link/quotas.hpp"
#include "kvd/core/door/status.hpp"
#include "kvd/core/door/tuning.hpp"
#include "metrics/catalogue/sample.hpp"

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
  std::uint64_t live_settings = 0;            ///< that the next start does not have
};

/// Tells where the value of a configuration key comes from.
struct ConfigOrigin {
  std::string key;
  std::string origin;  ///< "default", "FILE:LINE", a variable, "command line" or "live"
  /// Where it is "live", the value after the next start; "": the key does not exist then.
  std::optional<std::string> configured = std::nullopt;
};

/// The counters as they once were.
struct Moment {
  TimePoint at{0};
  core::Counters counters;
};
using History = std::vector<Moment>;

/// All that REST and the metrics show, at one instant. It has no token, prompt or KV byte.
struct Snapshot {
  TimePoint now{0};
  ReadPolicy read = ReadPolicy::kAuto;
  std::uint32_t uid = 0;  ///< kvd's own
  DaemonInfo info;
  core::ControllerStatus status;
  std::vector<std::pair<std::string, std::string>> config;  ///< every key with its value in force
  std::vector<ConfigOrigin> origins;                        ///< of each of them
  std::vector<DomainQuota> quotas;
  std::vector<Happening> happenings;  ///< oldest first
  std::vector<metrics::Sample> samples;
  /// Oldest first. kvd-admin keeps it, so it does not come over the link. Never null.
  std::shared_ptr<const History> history = std::make_shared<const History>();
};

namespace link {

/// More than 64 engines with all the requests they may have.
constexpr Bytes kMostSnapshot = 128 * kMiB;

/// Appends the snapshot's bytes; distributions of the counters stay behind, as samples have them.
void encode(Snapshot& snapshot, ByteVector& out);
/// Errors: InvalidArgument for bytes that are no snapshot of this build.
[[nodiscard]] Result<Snapshot> decode_snapshot(std::span<const std::byte> bytes);

void encode(core::Tuning& tuning, ByteVector& out);
[[nodiscard]] Result<core::Tuning> decode_tuning(std::span<const std::byte> bytes);

}  // namespace link
}  // namespace kvd::admin
