#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <string_view>

#include "kvd/daemon/config/config.hpp"
#include "kvd/daemon/config/config_values.hpp"
#include "kvd/tiers/remote/socket.hpp"

namespace kvd::daemon {
namespace {

constexpr Bytes kSlabGrain = 2 * kMiB;  ///< a huge page; also the grain of device allocations
constexpr Bytes kUsualSlab = 64 * kMiB;
constexpr Bytes kUsualCudaSlab = 256 * kMiB;  ///< each slab costs driver calls at every attach
constexpr Nanoseconds kMinBurst{5'000};  ///< with less, a copy engine is far from its full rate
constexpr Nanoseconds kMaxBurst{10'000'000};    ///< an engine's step
constexpr Bytes kMaxSize = kGiB * 1024 * 1024;  ///< 1 PiB: sums of sizes never overflow
constexpr Bytes kLeastDisk = 16 * kMiB;
constexpr Nanoseconds kLeastTtl = std::chrono::minutes(1), kMostTtl = std::chrono::hours(365 * 24);
constexpr Nanoseconds kMostLastWrites = std::chrono::hours(1);
constexpr std::uint32_t kMaxTouches = 100;
constexpr double kMostRetained = 0.9;
constexpr Nanoseconds kLongestRetained = std::chrono::hours(24);
constexpr std::int64_t kMaxSlabCount = SlotId::kMaxSlabs - 1;
constexpr std::uint32_t kMaxRequests = 4096;  // as many as one step message holds
constexpr std::uint32_t kMaxEngines = 1u << 12;
constexpr std::size_t kMaxDevices = 64;
constexpr uid_t kNoUser = static_cast<uid_t>(-1);  ///< to the kernel: leave the user as it is
constexpr std::size_t kMaxDomains = 64;            ///< each is several series of the metrics
constexpr std::size_t kMaxDomainName = 32;

using Faults = std::vector<std::string>;

bool in_range(Bytes size) { return size >= Bytes(0) && size <= kMaxSize; }

/// Whether all sizes allow slabs to be counted at all.
bool check_sizes(const Config& config, Faults& faults) {
  const std::pair<const char*, Bytes> sizes[] = {{"pool.hbm", config.hbm},
                                                 {"pool.dram", config.dram},
                                                 {"pool.slab", config.slab},
                                                 {"pool.reserve", config.reserve}};
  const std::size_t before = faults.size();
  for (const auto& [path, size] : sizes) {
    if (in_range(size)) continue;
    faults.push_back(std::string(path) + ": must be from 0 to 1 PiB, is " + kSize.format(size));
  }
  if (config.slab.value % kSlabGrain.value != 0) {
    faults.push_back("pool.slab: " + kSize.format(config.slab) +
                     " is no multiple of 2 MiB; round it, or write \"auto\"");
  }
  return faults.size() == before;
}

/// The number of pools of the tier.
std::int64_t pools_of(const Config& config, Tier tier) {
  return tier == Tier::kHbm ? std::ssize(config.devices) : 1;
}

void check_slab_count(const Config& config, Tier tier, Faults& faults) {
  const std::string path = std::string("pool.") + name(tier);
  const Bytes size = tier == Tier::kHbm ? config.hbm : config.dram;
  const Bytes slab = config.slab_size();
  if (size < slab) {
    faults.push_back(path + ": " + human_size(size) + " is less than one slab (" +
                     human_size(slab) + "); raise it or lower pool.slab");
  } else if (size / slab * pools_of(config, tier) > kMaxSlabCount) {
    const std::string each = pools_of(config, tier) > 1 ? " on each device" : "";
    faults.push_back(path + ": " + human_size(size) + " makes " + std::to_string(size / slab) +
                     " slabs of " + human_size(slab) + each + ", the most is " +
                     std::to_string(kMaxSlabCount) + "; raise pool.slab or write \"auto\"");
  }
}

/// Guarantees count in whole slabs, as the pool hands them out.
void check_guarantees(const Config& config, Tier tier, Faults& faults) {
  const Bytes slab = config.slab_size();
  Bytes promised;
  for (const DomainConfig& domain : config.domains) {
    const Bytes guarantee = tier == Tier::kHbm ? domain.hbm_guarantee : domain.dram_guarantee;
    if (in_range(guarantee)) promised += pieces(guarantee, slab) * slab;
  }
  const Bytes capacity = std::int64_t{config.slabs(tier)} * slab;
  if (promised <= capacity) return;
  faults.push_back(std::string("pool.") + name(tier) + ": the domains are guaranteed " +
                   human_size(promised) + " (in whole slabs), the pool has " +
                   human_size(capacity) + "; lower a " + name(tier) +
                   "_guarantee or enlarge the pool");
}

void check_devices(const Config& config, Faults& faults) {
  if (config.devices.empty() || config.devices.size() > kMaxDevices) {
    faults.push_back("device: must be 1 to " + std::to_string(kMaxDevices) + ", are " +
                     std::to_string(config.devices.size()));
  }
  std::set<std::string> gpus;
  for (std::size_t i = 0; i < config.devices.size(); ++i) {
    if (config.backend == BackendChoice::kHost || gpus.insert(gpu_of(config, i)).second) continue;
    faults.push_back("device." + std::to_string(i) + ".gpu: \"" + gpu_of(config, i) +
                     R"(" is another device's too; name a GPU for each, or set backend = "host")");
  }
}

void check_pools(const Config& config, Faults& faults) {
  Config counted = config;
  if (!check_sizes(config, faults))
    counted.slab = Bytes(0);  // so that other faults are reported as well
  for (const Tier tier : {Tier::kHbm, Tier::kDram}) {
    if (!in_range(config.hbm) || !in_range(config.dram)) return;
    check_slab_count(counted, tier, faults);
    check_guarantees(counted, tier, faults);
  }
}

bool is_domain_name(std::string_view text) {
  constexpr std::string_view kAllowed =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
  return !text.empty() && text.size() <= kMaxDomainName &&
         text.find_first_not_of(kAllowed) == std::string_view::npos;
}

void check_quota(const std::string& path, Bytes guarantee, Bytes maximum, Faults& faults) {
  if (!in_range(guarantee)) {
    faults.push_back(path + "_guarantee: must be from 0 to 1 PiB, is " + kSize.format(guarantee));
  } else if (maximum < guarantee) {
    faults.push_back(path + "_maximum: " + human_size(maximum) + " is below the guarantee (" +
                     human_size(guarantee) + ")");
  }
}

void check_domain(const Config& config, const DomainConfig& domain, Faults& faults) {
  const std::string path = "domain." + domain.name;
  if (!is_domain_name(domain.name)) {
    faults.push_back(path + ": a name has 1 to " + std::to_string(kMaxDomainName) +
                     " letters, digits, '_' or '-'");
  }
  if (domain.makes_domains() &&
      (domain.hbm_guarantee > Bytes(0) || domain.dram_guarantee > Bytes(0))) {
    faults.push_back(path + (domain.per_user ? ".per_user" : ".per_group") +
                     ": users with domains of their own have no guarantee; list the "
                     "one who is to have it in a [[domain]] before this one");
  }
  if (domain.per_user && domain.per_group) {
    faults.push_back(path +
                     ".per_group: is for one account that runs engines of several users; "
                     "set it or per_user, not both");
  }
  if (domain.name.starts_with("uid-") || domain.name.starts_with("gid-")) {
    faults.push_back(path + R"(: names that begin with "uid-" or "gid-" are those of per_user )" +
                     "and per_group domains");
  }
  check_quota(path + ".hbm", domain.hbm_guarantee, domain.hbm_maximum, faults);
  check_quota(path + ".dram", domain.dram_guarantee, domain.dram_maximum, faults);
  if (!config.tuning.slo.contains(domain.slo_class)) {
    faults.push_back(path + ".slo_class: there is no [slo." + domain.slo_class + "]; add it");
  }
}

void check_domains(const Config& config, Faults& faults) {
  if (config.domains.empty() || config.domains.size() > kMaxDomains) {
    faults.push_back("domain: must be 1 to " + std::to_string(kMaxDomains) + ", are " +
                     std::to_string(config.domains.size()));
  }
  std::set<std::string> names;
  const DomainConfig* open = nullptr;
  for (const DomainConfig& domain : config.domains) {
    check_domain(config, domain, faults);
    // The first domain that fits takes the engine, so domains behind an open one are never reached.
    if (open != nullptr) {
      faults.push_back("domain." + domain.name + ": never used, \"" + open->name +
                       "\" before it takes everyone; move it up");
    } else if (domain.uids.empty() && domain.gids.empty()) {
      open = &domain;
    }
    if (!names.insert(domain.name).second) {
      faults.push_back("domain." + domain.name + ": the name is used twice; rename one");
    }
  }
}

bool is_loopback(const std::string& address) {
  in_addr v4{};
  if (::inet_pton(AF_INET, address.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  return address == "::1";
}

void check_listener(const std::string& table, const std::string& address, std::uint16_t port,
                    Faults& faults) {
  if (address.empty()) return;
  if (!is_loopback(address)) {
    faults.push_back(table + ".address: \"" + address +
                     "\" is not loopback (127.0.0.0/8, ::1); put a proxy in front to "
                     "reach kvd from other machines");
  }
  if (port == 0) {
    faults.push_back(table + ".port: must be from 1 to 65535; an empty " + table +
                     ".address switches the listener off");
  }
}

void check_listeners(const Config& config, Faults& faults) {
  check_listener("admin", config.admin_address, config.admin_port, faults);
  check_listener("metrics", config.metrics_address, config.metrics_port, faults);
  const bool both = !config.admin_address.empty() && !config.metrics_address.empty();
  if (both && config.admin_port == config.metrics_port && config.admin_port != 0) {
    faults.push_back("metrics.port: " + std::to_string(config.metrics_port) +
                     " is admin.port too; give each its own");
  }
}

void check_user(const std::string& user, Faults& faults) {
  if (user.empty() || user.find_first_not_of("0123456789") != std::string::npos) return;
  uid_t number = kNoUser;
  std::from_chars(user.data(), user.data() + user.size(), number);
  if (number == kNoUser) {
    faults.push_back("admin.user: " + user + " is no user's number; name one below 4294967295");
  }
}

void check_count(const std::string& path, std::uint32_t value, std::uint32_t most, Faults& faults) {
  if (value >= 1 && value <= most) return;
  faults.push_back(path + ": must be from 1 to " + std::to_string(most) + ", is " +
                   std::to_string(value));
}

void check_engine(const Config& config, Faults& faults) {
  if (config.step_timeout <= Nanoseconds(0)) {
    faults.push_back("engine.step_timeout: must be longer than zero");
  }
  if (config.evict_after < Nanoseconds(0)) {
    faults.push_back("engine.evict_after: must not be negative; zero or \"never\" switches it off");
  }
  if (config.standstill_after < Nanoseconds(0)) {
    faults.push_back(
        "engine.standstill_after: must not be negative; zero or \"never\" switches it off");
  }
  check_count("engine.max_requests", config.max_requests, kMaxRequests, faults);
  check_count("engine.max_engines", config.max_engines, kMaxEngines, faults);
  if (config.max_engines >= 1 && config.max_engines < config.domains.size()) {
    faults.push_back("engine.max_engines: must be at least one for each of the " +
                     std::to_string(config.domains.size()) + " domains, is " +
                     std::to_string(config.max_engines));
  }
  if (!(config.link_bandwidth.value >= 0)) {
    faults.push_back("link.bandwidth: must not be negative; zero or \"unlimited\" lifts it");
  }
}

void check_cuda(const Config& config, Faults& faults) {
  const bool in_a_row = config.cuda.burst == Nanoseconds(0);
  if (!in_a_row && (config.cuda.burst < kMinBurst || config.cuda.burst > kMaxBurst)) {
    faults.push_back("cuda.burst: must be from 5us to 10ms, or 0: without a gap between two");
  }
  if (config.cuda.watchdog <= Nanoseconds(0)) {
    faults.push_back("cuda.watchdog: must be longer than zero");
  }
}

void check_disk(const Config& config, Faults& faults) {
  const DiskSettings& disk = config.disk;
  if (!disk.path.empty() && disk.path.front() != '/') {
    faults.push_back("disk.path: \"" + disk.path + "\" does not begin with /: name the whole path");
  }
  if (disk.size < kLeastDisk || disk.size > kMaxSize) {
    faults.push_back("disk.size: must be from 16 MiB to 1 PiB, is " + kSize.format(disk.size));
  }
  if (!in_range(disk.floor)) {
    faults.push_back("disk.floor: must be from 0 to 1 PiB, is " + kSize.format(disk.floor));
  }
  if (disk.daily_writes < Bytes(0)) faults.push_back("disk.daily_writes: must not be negative");
  check_count("disk.touches", disk.touches, kMaxTouches, faults);
  if (!(disk.retain.share >= 0 && disk.retain.share <= kMostRetained)) {
    faults.push_back("cache.retain_share: must be from 0 to 0.9, so that other blocks find room");
  }
  if (disk.retain.most <= Nanoseconds(0) || disk.retain.most > kLongestRetained) {
    faults.push_back("cache.retain_most: must be more than nothing, and at most 24h, is " +
                     kDuration.format(disk.retain.most) +
                     "; cache.retain_share = 0 retains nothing");
  }
}

void check_remote(const Config& config, Faults& faults) {
  const RemoteSettings& remote = config.remote;
  const std::vector<std::string> servers = remote.list();
  for (const std::string& server : servers) {
    const Status named = remote::check_address(server);
    if (!named.ok()) faults.push_back("remote.servers: " + named.error().message);
  }
  if (!servers.empty() && remote.secret_file.empty()) {
    faults.push_back(
        "remote.secret_file: name a file with a secret that all nodes have (openssl rand -hex 32)");
  }
  if (remote.ttl < kLeastTtl || remote.ttl > kMostTtl) {
    faults.push_back("remote.ttl: must be from 1 minute to 365 days, is " +
                     kDuration.format(remote.ttl));
  }
  if (remote.budget < kMiB) {
    faults.push_back("remote.budget: must be at least 1 MiB, is " + kSize.format(remote.budget));
  }
  if (config.remote.drain < Nanoseconds(0) || config.remote.drain > kMostLastWrites) {
    faults.push_back("drain.to_remote: must be at most 1h, or never, is " +
                     kDurationOrNever.format(config.remote.drain));
  }
}

void check_paths(const Config& config, Faults& faults) {
  constexpr std::size_t kMaxSocketPath = sizeof(sockaddr_un::sun_path) - 1;
  const std::string socket = config.runtime_dir + "/command.sock";
  if (socket.size() <= kMaxSocketPath) return;
  faults.push_back("paths.runtime_dir: makes a socket path of " + std::to_string(socket.size()) +
                   " bytes, the system allows " + std::to_string(kMaxSocketPath) +
                   "; choose a shorter one");
}

/// The tuning's own faults name keys of the REST document, where goals are seconds: "…tbt_s".
std::string as_file_key(std::string fault) {
  const std::size_t colon = fault.find(": ");
  const bool is_goal = fault.starts_with("slo.") && colon != std::string::npos &&
                       std::string_view(fault).substr(0, colon).ends_with("_s");
  return is_goal ? fault.erase(colon - 2, 2) : fault;
}

}  // namespace

Bytes Config::slab_size() const {
  if (slab > Bytes(0)) return slab;
  const Bytes quarter(hbm.value / 4 / kSlabGrain.value * kSlabGrain.value);
  const Bytes usual = backend == BackendChoice::kCuda ? kUsualCudaSlab : kUsualSlab;
  Bytes size = std::max(kSlabGrain, std::min(usual, quarter));
  // Slot ids can number only this many slabs.
  while (std::max(hbm * std::ssize(devices), dram) / size > kMaxSlabCount) size += size;
  return size;
}

std::uint32_t Config::slabs(Tier tier) const {
  return static_cast<std::uint32_t>((tier == Tier::kHbm ? hbm : dram) / slab_size());
}

std::uint32_t Config::all_slabs(Tier tier) const {
  return slabs(tier) * static_cast<std::uint32_t>(tier == Tier::kHbm ? devices.size() : 1);
}

const std::string& gpu_of(const Config& config, std::size_t device) {
  const std::string& own = config.devices.at(device).gpu;
  return own.empty() ? config.cuda.device : own;
}

std::vector<std::string> faults(const Config& config) {
  Faults found;
  check_paths(config, found);
  check_devices(config, found);
  check_pools(config, found);
  check_cuda(config, found);
  check_disk(config, found);
  check_remote(config, found);
  check_engine(config, found);
  check_listeners(config, found);
  check_user(config.admin_process.user, found);
  for (const std::string& fault : config.tuning.faults()) found.push_back(as_file_key(fault));
  check_domains(config, found);
  return found;
}

}  // namespace kvd::daemon
