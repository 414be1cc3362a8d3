#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/admin/link/messages.hpp"
#include "kvd/admin/link/snapshot.hpp"
#include "kvd/core/door/config.hpp"
#include "kvd/core/door/tuning.hpp"
#include "kvd/store/index/eviction.hpp"

namespace kvd::daemon {

enum class BackendChoice : std::uint8_t { kAuto, kHost, kCuda };

/// Engines that trust each other and share slabs. Source: kvd/DESIGN.md "Domains and quotas".
struct DomainConfig {
  std::string name = "default";
  std::vector<uid_t> uids;  ///< users that belong to it; with uids and gids empty: everyone
  std::vector<gid_t> gids;
  Bytes hbm_guarantee;
  Bytes hbm_maximum{INT64_MAX};
  Bytes dram_guarantee;
  Bytes dram_maximum{INT64_MAX};
  std::string slo_class = "default";
  /// Every user that it takes gets a domain of its own, named uid-N, with these maxima. There are
  /// no guarantees, since nobody knows how many users come.
  bool per_user = false;
  /// The same for every primary group that its engines run with, named gid-N: for an account that
  /// runs the engines of several users.
  bool per_group = false;

  [[nodiscard]] bool makes_domains() const { return per_user || per_group; }
};

/// A device with HBM and a link of its own. Source: kvd/DESIGN.md "Devices".
struct DeviceConfig {
  std::string gpu;  ///< ordinal or UUID; empty: cuda.device. The host backend ignores it
};

/// The process that serves REST and metrics.
struct AdminProcess {
  std::string program;  ///< empty: kvd-admin beside kvd
  /// The user that it becomes where kvd may do that; empty: kvd's own user.
  std::string user = "nobody";
  admin::ReadPolicy read = admin::ReadPolicy::kAuto;
};

/// Cached blocks on disk, and those in DRAM that outlive kvd. Source: kvd/DESIGN.md "Blocks on
/// disk", "Blocks that outlive kvd".
struct DiskSettings {
  std::string path;               ///< folder; empty: there is no disk
  Bytes size = 64 * kGiB;         ///< size of each model's files
  Bytes floor = 10 * kGiB;        ///< room that the file system must have left for others
  Bytes daily_writes{INT64_MAX};  ///< for all models together
  bool keep = true;               ///< restart.keep
  std::uint32_t touches = 2;      ///< a block is written once it was asked for this often
  store::EvictionKind eviction = store::EvictionKind::kDefault;  ///< cache.eviction
  core::Config::Retain retain;                                   ///< cache.retain_…
};

/// Cached blocks on Redis or Valkey servers that several nodes share. Source: kvd/DESIGN.md "Blocks
/// on other machines".
struct RemoteSettings {
  std::string servers;  ///< host:port or unix:/path, with spaces or commas between; empty: none
  std::string password_file;                ///< the servers' password; empty: none
  std::string secret_file;                  ///< the same secret on all nodes, in its first line
  Nanoseconds ttl{std::chrono::hours(24)};  ///< of a block that nobody asks for
  bool write_all = false;     ///< remote.write: all, not just what was asked for again
  Bytes budget = 100 * kMiB;  ///< written in a second at most
  /// drain.to_remote: how long kvd, told to end, writes what it has cached; zero: it does not.
  Nanoseconds drain{0};
  [[nodiscard]] std::vector<std::string> list() const;
};

/// How soon the thread that answers engines answers.
struct Promptness {
  /// How long it looks at rings before it sleeps; none: default_spin(). Only tests set it.
  std::optional<Nanoseconds> ring_spin;
  bool realtime = true;  ///< engine.realtime: where kvd may
};

struct CudaSettings {
  std::string device;          ///< ordinal or UUID; empty: the first
  std::string dram = "memfd";  ///< what DRAM slabs are: memfd, host_numa or auto
  Nanoseconds burst{100'000};  ///< how long the GPU copies at a time; zero: in a row
  /// A copy that stands still for this long means a lost device.
  Nanoseconds watchdog{30'000'000'000};
};

/// Everything that can be set: in a TOML file, by KVD_* in the environment, or by flags; the later
/// one wins. The default of every member is what runs without any file. docs:
/// deploy/config/kvd.toml.
struct Config {
  BackendChoice backend = BackendChoice::kAuto;

  // paths; empty ones are filled in by resolve_paths()
  std::string runtime_dir;     ///< /run/kvd as root, else $XDG_RUNTIME_DIR/kvd
  std::string attach_socket;   ///< runtime_dir/attach.sock
  std::string command_socket;  ///< runtime_dir/command.sock
  std::string token_file;      ///< runtime_dir/admin.token

  // pool
  Bytes hbm = 256 * kMiB;  ///< for each device
  Bytes dram = kGiB;
  Bytes slab;                  ///< zero: 64 MiB, on CUDA 256 MiB, less when the pool is smaller
  Bytes reserve = 512 * kMiB;  ///< memory left to the rest of the machine

  CudaSettings cuda;
  DiskSettings disk;
  RemoteSettings remote;

  // link
  /// Host backend: each direction of each device; zero: unthrottled.
  BytesPerSecond link_bandwidth;

  // engine
  Nanoseconds step_timeout{5'000'000'000};
  /// Kills a silent engine after others have waited this long for what it holds; zero: never.
  Nanoseconds evict_after{60'000'000'000};
  Nanoseconds standstill_after{60'000'000'000};  ///< see core::Controller::Config; zero: never
  std::uint32_t max_requests = 1024;
  std::uint32_t max_engines = 64;
  Promptness promptness;

  // admin, metrics; an empty address switches the listener off
  std::string admin_address = "127.0.0.1";
  std::uint16_t admin_port = 8470;
  AdminProcess admin_process;
  std::string metrics_address = "127.0.0.1";
  std::uint16_t metrics_port = 9470;

  std::string log_level = "info";

  /// Says where each key was set: "FILE:LINE", a variable or "command line". A key that was not set
  /// is missing. Tables of the file are listed, too.
  std::map<std::string, std::string> origins;

  /// A daemon decides all that its engines let it; a Controller decides only what it is asked to.
  core::Tuning tuning = [] {
    core::Tuning all;
    all.placement.policy = "orbitflow";
    all.admission.policy = "layerkv";
    return all;
  }();
  std::vector<DeviceConfig> devices{1};
  std::vector<DomainConfig> domains = [] {
    DomainConfig everyone;
    everyone.per_user = true;
    return std::vector<DomainConfig>{everyone};
  }();

  [[nodiscard]] Bytes slab_size() const;
  /// Slabs in DRAM, or in one device's HBM, after rounding the size down to whole slabs.
  [[nodiscard]] std::uint32_t slabs(Tier tier) const;
  /// Slabs in a tier, with the HBM of all devices.
  [[nodiscard]] std::uint32_t all_slabs(Tier tier) const;
};

/// The GPU of a device on the CUDA backend: ordinal or UUID; empty: the first one.
[[nodiscard]] const std::string& gpu_of(const Config& config, std::size_t device);

/// What the command line asked for.
struct Invocation {
  enum class Action : std::uint8_t {
    kRun,
    kCheck,
    kPrint,
    kPrintUnit,
    kHelp,
    kVersion
  } action = Action::kRun;
  std::string file;  ///< empty: none
  Config config;
  std::string text;  ///< what to print, for the actions other than kRun and kCheck
};

/// Reads flags, environment and file. `environment` is a NULL-terminated environ. Errors:
/// InvalidArgument whose message lists every fault on a line of its own, each with its key (and
/// line of the file) and the remedy.
[[nodiscard]] Result<Invocation> parse_invocation(int argc, const char* const* argv,
                                                  const char* const* environment);

/// All faults of a finished configuration (sizes, ports, guarantees, policies); empty when valid.
[[nodiscard]] std::vector<std::string> faults(const Config& config);

/// Fills in the paths that were not set.
void resolve_paths(Config& config, const char* const* environment);

/// The configuration as a TOML file that reads back as the same configuration.
[[nodiscard]] std::string to_toml(const Config& config);

/// Every key with its effective value, for GET /v1/config: {"pool.hbm":"256MiB",…}.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> effective_values(
    const Config& config);

/// Each key whose values differ, for people: "rotation.policy: unified -> fcfs".
[[nodiscard]] std::vector<std::string> differences(const Config& before, const Config& after);
/// Every key with where it was set, and "live" where its value is not the configured one.
[[nodiscard]] std::vector<admin::ConfigOrigin> config_origins(const Config& configured,
                                                              const Config& in_force);

/// "64GiB", "1.5GiB", "4096" -> bytes. Errors: InvalidArgument.
[[nodiscard]] Result<Bytes> parse_bytes(const std::string& text);
/// "100ms", "5s", "2m" -> nanoseconds. Errors: InvalidArgument.
[[nodiscard]] Result<Nanoseconds> parse_duration(const std::string& text);

}  // namespace kvd::daemon
