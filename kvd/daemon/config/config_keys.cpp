#include "kvd/daemon/config/config_keys.hpp"

#include <algorithm>
#include <cctype>
#include <utility>

#include "ipc/vocabulary/nearest.hpp"
#include "kvd/core/door/tuning_keys.hpp"
#include "kvd/daemon/config/config_values.hpp"

namespace kvd::daemon {
namespace {

/// Maps an object, const or not, to a reference to its member.
#define KVD_AT(member) \
  [](auto& object) -> auto& { return object.member; }

/// `at` maps a T (const or not) to a reference to the setting's member.
template <class T, class Value, class At>
Setting<T> setting(std::string path, std::string help, std::string when,
                   const Spelling<Value>& spelling, At at) {
  return {std::move(path),
          std::move(help),
          std::move(when),
          [&spelling, at](T& target, const std::string& text) -> Status {
            KVD_ASSIGN_OR_RETURN(at(target), spelling.parse(text));
            return {};
          },
          [&spelling, at](const T& source) { return spelling.format(at(source)); },
          spelling.plain};
}

template <class Value, class At>
Setting<Config> key(std::string path, std::string help, std::string when,
                    const Spelling<Value>& spelling, At at) {
  return setting<Config>(std::move(path), std::move(help), std::move(when), spelling, at);
}

using Keys = std::vector<Setting<Config>>;

Keys process_keys() {
  return {
      key("backend", "where the pools live: auto, host or cuda",
          "leave it; host on a machine whose GPU kvd should not touch", kBackend, KVD_AT(backend)),
      key("paths.runtime_dir", "sockets and token; empty: /run/kvd or $XDG_RUNTIME_DIR/kvd",
          "where /run/kvd is not to be had, or several kvd run", kText, KVD_AT(runtime_dir)),
      key("paths.token_file", "admin's bearer token; empty: admin.token in paths.runtime_dir",
          "where the token is kept elsewhere, such as in a mounted secret", kText,
          KVD_AT(token_file)),
  };
}

Keys memory_keys() {
  return {
      key("pool.hbm", "size of each device's fast tier (host backend: plain memory)",
          "always: what the GPU has beside weights and activations", kSize, KVD_AT(hbm)),
      key("pool.dram", "size of the tier that requests rotate to",
          "always: what the machine can spare", kSize, KVD_AT(dram)),
      key("pool.slab", "one allocation, a multiple of 2MiB; auto: 64MiB, CUDA 256MiB, or what fits",
          "leave it; smaller where many users share a small pool", kSizeOrAuto, KVD_AT(slab)),
      key("pool.reserve", "memory left to the rest of the machine",
          "where other programs of the machine need more", kSize, KVD_AT(reserve)),
      key("cuda.device", "which GPU: its number or UUID; empty: the first",
          "where the machine has several GPUs", kText, KVD_AT(cuda.device)),
      key("cuda.dram", "DRAM is memfd or host_numa (made and pinned by the driver), or auto",
          "host_numa on Grace, where the CPU's memory is beside the GPU", kCudaDram,
          KVD_AT(cuda.dram)),
      key("cuda.burst",
          "how long is copied at a time; engines' own copies wait as long; 0: no gaps",
          "where engines' own copies wait too long: shorter", kDuration, KVD_AT(cuda.burst)),
      key("cuda.watchdog", "a copy that stands still for longer means that the GPU is lost",
          "leave it; longer where other work holds the GPU for long", kDuration,
          KVD_AT(cuda.watchdog)),
      key("link.bandwidth", "host backend: copy rate of each device and direction, or unlimited",
          "to imitate a slower link without a GPU", kRate, KVD_AT(link_bandwidth)),
      key("restart.keep", "whether what is cached outlives kvd: auto or never",
          "never where nothing may outlive kvd", kAutoOrNever, KVD_AT(disk.keep)),
  };
}

Keys disk_keys() {
  return {
      key("cache.eviction", "which cached block makes way first: default or lru",
          "leave it; lru to compare with other caches", kEviction, KVD_AT(disk.eviction)),
      key("cache.retain_share",
          "share of a domain's DRAM whose blocks may be retained for agents' next turns; 0: none",
          "more where most requests are agents'", kNumber, KVD_AT(disk.retain.share)),
      key("cache.retain_most", "the longest that blocks are retained, whatever was asked for",
          "longer where tools run for longer", kDuration, KVD_AT(disk.retain.most)),
      key("disk.path", "folder where cached blocks go; empty: none",
          "where more should be found again than DRAM holds", kText, KVD_AT(disk.path)),
      key("disk.size", "size of all files of cached blocks; models share it",
          "to what the drive can spare", kSize, KVD_AT(disk.size)),
      key("disk.floor", "room that the file system must have left for others",
          "where others write to the same file system", kSize, KVD_AT(disk.floor)),
      key("disk.daily_writes", "written in a day at most, or unlimited",
          "to spare a drive: its rated writes, a day's share", kSizeOrUnlimited,
          KVD_AT(disk.daily_writes)),
      key("disk.touches", "how often a block is asked for before it is written; 1: each is",
          "1 where each block comes back and the drive may wear", kCount, KVD_AT(disk.touches)),
  };
}

Keys remote_keys() {
  return {
      key("remote.servers",
          "Redis or Valkey servers that nodes share blocks by: host:port or unix:/path, with "
          "commas between; empty: none",
          "where another node, or this one after a loss of its disk, should find what is computed",
          kText, KVD_AT(remote.servers)),
      key("remote.secret_file", "file whose first line is the secret that names blocks there",
          "with remote.servers: the same on all nodes that shall find each other's blocks", kText,
          KVD_AT(remote.secret_file)),
      key("remote.password_file", "file whose first line is the servers' password; empty: none",
          "where the servers ask for one", kText, KVD_AT(remote.password_file)),
      key("remote.ttl", "how long the servers keep a block that nobody asks for",
          "shorter where they fill up before they evict", kDuration, KVD_AT(remote.ttl)),
      key("remote.write", "what is written there: touched (once it was asked for again) or all",
          "all where sessions move between nodes or shall outlive one", kTouchedOrAll,
          KVD_AT(remote.write_all)),
      key("remote.budget", "bytes written there in a second at most, or unlimited",
          "lower where the network is others', too", kSizeOrUnlimited, KVD_AT(remote.budget)),
      key("drain.to_remote",
          "how long kvd, told to end, writes to remote.servers what it has cached, or never",
          "where sessions go on at another node when this one is stopped: what the service manager "
          "grants before it kills",
          kDurationOrNever, KVD_AT(remote.drain)),
  };
}

Keys engine_keys() {
  return {
      key("engine.step_timeout", "an engine silent for longer is unresponsive",
          "where an iteration may take longer", kDuration, KVD_AT(step_timeout)),
      key("engine.evict_after", "kill a silent engine that others wait for this long, or never",
          "never where a person should decide", kDurationOrNever, KVD_AT(evict_after)),
      key("engine.standstill_after",
          "where nobody of a domain can go on for so long its latest request ends, or never",
          "longer where a single step may take minutes", kDurationOrNever,
          KVD_AT(standstill_after)),
      key("engine.max_requests", "requests of one engine at a time",
          "where an engine has more seats", kCount, KVD_AT(max_requests)),
      key("engine.max_engines",
          "engines attached at a time; domains share them evenly, and one user has half at most",
          "where more engines attach", kCount, KVD_AT(max_engines)),
      key("engine.realtime",
          "whether answers go before other programs: auto (where kvd may) or never",
          "never where nothing may go before other programs", kAutoOrNever,
          KVD_AT(promptness.realtime)),
  };
}

Keys listener_keys() {
  return {
      key("admin.address", "loopback address of the REST API; empty: off",
          "empty where nobody asks over REST; ::1 for IPv6", kText, KVD_AT(admin_address)),
      key("admin.port", "port of the REST API", "where the port is taken", kPort,
          KVD_AT(admin_port)),
      key("admin.read", "who may read over REST: auto, open or token",
          "token where what is shown is not for all users", kReadPolicy,
          KVD_AT(admin_process.read)),
      key("admin.program", "what serves REST and metrics; empty: kvd-admin beside kvd",
          "where kvd-admin is installed elsewhere", kText, KVD_AT(admin_process.program)),
      key("admin.user", "whom it runs as where kvd may change users; empty: as kvd",
          "to give it a user of its own", kText, KVD_AT(admin_process.user)),
      key("metrics.address", "loopback address of /metrics; empty: off",
          "empty where nobody scrapes; ::1 for IPv6", kText, KVD_AT(metrics_address)),
      key("metrics.port", "port of /metrics", "where the port is taken", kPort,
          KVD_AT(metrics_port)),
      key("log.level", "trace, debug, info, warn, error, critical or off",
          "debug to look into a fault", kLogLevel, KVD_AT(log_level)),
  };
}

const Spelling<std::string>& spelling_of(const core::TuningField<std::string>&) { return kText; }
const Spelling<double>& spelling_of(const core::TuningField<double>&) { return kNumber; }
const Spelling<bool>& spelling_of(const core::TuningField<bool>&) { return kBool; }
const Spelling<std::optional<Bytes>>& spelling_of(const core::TuningField<std::optional<Bytes>>&) {
  return kOptionalSize;
}

/// Where a field of the tuning is in a Config.
template <class T>
struct InTuning {
  core::TuningField<T> field;
  T& operator()(Config& config) const { return field.in(config.tuning); }
  const T& operator()(const Config& config) const { return field.of(config.tuning); }
};

Keys policy_keys() {
  Keys keys;
  for (const core::TuningKey& one : core::tuning_keys()) {
    const auto add = [&]<class T>(const core::TuningField<T>& field) {
      keys.push_back(key(std::string(one.path), std::string(one.help), std::string(one.when),
                         spelling_of(field), InTuning<T>{field}));
    };
    std::visit(add, one.field);
  }
  return keys;
}

/// The class that every configuration has, settable like any other key.
Keys default_slo_keys() {
  Keys keys;
  for (const Setting<core::Slo>& goal : slo_keys()) {
    keys.push_back({"slo.default." + goal.path, goal.help, goal.when,
                    [&goal](Config& config, const std::string& text) {
                      return goal.set(config.tuning.slo["default"], text);
                    },
                    [&goal](const Config& config) {
                      const auto found = config.tuning.slo.find("default");
                      return goal.get(found == config.tuning.slo.end() ? core::Slo{}
                                                                       : found->second);
                    },
                    goal.plain});
  }
  return keys;
}

/// The part of a flag's or variable's name that varies.
std::string_view bare(std::string_view name) {
  for (const std::string_view start : {"--", "KVD_"}) {
    if (name.starts_with(start)) return name.substr(start.size());
  }
  return name;
}

/// A right name without its table ("hbm" for "pool.hbm") counts as one slip.
std::size_t distance(std::string_view name, std::string_view candidate) {
  if (candidate.size() > name.size() && candidate.ends_with(name)) {
    const char before = candidate[candidate.size() - name.size() - 1];
    if (before == '.' || before == '_') return 1;
  }
  constexpr std::size_t kLooked = 64;  // a file may have a name of 1 MiB
  return edit_distance(name.substr(0, kLooked), candidate);
}

}  // namespace

const std::vector<Setting<Config>>& config_keys() {
  static const Keys kKeys = [] {
    Keys all;
    for (const Keys& part : {process_keys(), memory_keys(), disk_keys(), remote_keys(),
                             engine_keys(), listener_keys(), policy_keys(), default_slo_keys()}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }();
  return kKeys;
}

const std::vector<Setting<core::Slo>>& slo_keys() {
  static const std::vector<Setting<core::Slo>> kKeys = {
      setting<core::Slo>("ttft", "goal: time to the first token", "to what users accept", kDuration,
                         KVD_AT(ttft)),
      setting<core::Slo>("tbt", "goal: time between two tokens", "to the pace at which users read",
                         kDuration, KVD_AT(tbt)),
      setting<core::Slo>("tpot", "goal: mean time per token", "to the mean pace that is promised",
                         kDuration, KVD_AT(tpot)),
      setting<core::Slo>("gap", "goal: longest wait for a token, or auto: 10 x tbt, at least 1 s",
                         "where a long pause is worse, or less bad, than that", kDurationOrAuto,
                         KVD_AT(gap)),
  };
  return kKeys;
}

const std::vector<Setting<DeviceConfig>>& device_keys() {
  static const std::vector<Setting<DeviceConfig>> kKeys = {
      setting<DeviceConfig>("gpu", "which GPU: its number or UUID; empty: cuda.device",
                            "for each device of several", kText, KVD_AT(gpu)),
  };
  return kKeys;
}

const std::vector<Setting<DomainConfig>>& domain_keys() {
  using D = DomainConfig;
  static const std::vector<Setting<D>> kKeys = {
      setting<D>("name", "unique", "always", kText, KVD_AT(name)),
      setting<D>("uids", "users who belong to it", "always, or gids", kIdList, KVD_AT(uids)),
      setting<D>("gids", "groups who belong to it; without uids and gids: everyone",
                 "always, or uids", kIdList, KVD_AT(gids)),
      setting<D>("hbm_guarantee", "always available to it", "to what the domain must always get",
                 kSize, KVD_AT(hbm_guarantee)),
      setting<D>("hbm_maximum", "never more than this, or unlimited", "to bound the domain",
                 kSizeOrUnlimited, KVD_AT(hbm_maximum)),
      setting<D>("dram_guarantee", "always available to it", "to what the domain must always get",
                 kSize, KVD_AT(dram_guarantee)),
      setting<D>("dram_maximum", "never more than this, or unlimited", "to bound the domain",
                 kSizeOrUnlimited, KVD_AT(dram_maximum)),
      setting<D>("slo_class", "class of requests that name none",
                 "where its requests have goals of their own", kText, KVD_AT(slo_class)),
      setting<D>("per_user", "each user has a domain of its own, named uid-N; no guarantees",
                 "where each user should be a domain", kBool, KVD_AT(per_user)),
      setting<D>(
          "per_group",
          "each primary group that engines run with has a domain of its own, named gid-N; no "
          "guarantees",
          "where each group should be a domain", kBool, KVD_AT(per_group)),
  };
  return kKeys;
}

#undef KVD_AT

std::string variable_of(std::string_view path) {
  std::string name = "KVD_";
  for (const char c : path) {
    name += c == '.' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return name;
}

std::string nearest(std::string_view name, const std::vector<std::string>& candidates) {
  return *std::min_element(candidates.begin(), candidates.end(),
                           [&](const std::string& a, const std::string& b) {
                             return distance(bare(name), bare(a)) < distance(bare(name), bare(b));
                           });
}

}  // namespace kvd::daemon
