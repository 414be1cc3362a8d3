#include "kvd/daemon/config/config_keys.hpp"

#include <algorithm>
#include <cctype>
#include <utility>

#include "ipc/vocabulary/nearest.hpp"
#include "kvd/daemon/config/config_values.hpp"

namespace kvd::daemon {
namespace {

/// `at` maps a T (const or not) to a reference to the setting's member.
template <class T, class Value, class At>
Setting<T> setting(std::string path, std::string help, const Spelling<Value>& spelling, At at) {
  return {std::move(path), std::move(help),
          [&spelling, at](T& target, const std::string& text) -> Status {
            KVD_ASSIGN_OR_RETURN(at(target), spelling.parse(text));
            return {};
          },
          [&spelling, at](const T& source) { return spelling.format(at(source)); }, spelling.plain};
}

template <class Value, class At>
Setting<Config> key(std::string path, std::string help, const Spelling<Value>& spelling, At at) {
  return setting<Config>(std::move(path), std::move(help), spelling, at);
}

using Keys = std::vector<Setting<Config>>;

Keys process_keys() {
  return {
      key(
          "backend", "where the pools live: auto, host or cuda", kBackend,
          [](auto& c) -> auto& { return c.backend; }),
      key(
          "paths.runtime_dir", "sockets and token; empty: /run/kvd or $XDG_RUNTIME_DIR/kvd", kText,
          [](auto& c) -> auto& { return c.runtime_dir; }),
      key(
          "paths.attach_socket", "empty: attach.sock in paths.runtime_dir", kText,
          [](auto& c) -> auto& { return c.attach_socket; }),
      key(
          "paths.command_socket", "empty: command.sock in paths.runtime_dir", kText,
          [](auto& c) -> auto& { return c.command_socket; }),
      key(
          "paths.token_file", "admin's bearer token; empty: admin.token in paths.runtime_dir",
          kText, [](auto& c) -> auto& { return c.token_file; }),
  };
}

Keys memory_keys() {
  return {
      key(
          "pool.hbm", "size of each device's fast tier (host backend: plain memory)", kSize,
          [](auto& c) -> auto& { return c.hbm; }),
      key(
          "pool.dram", "size of the tier that requests rotate to", kSize,
          [](auto& c) -> auto& { return c.dram; }),
      key(
          "pool.slab", "one allocation, a multiple of 2MiB; auto: 64MiB, CUDA 256MiB, or what fits",
          kSizeOrAuto, [](auto& c) -> auto& { return c.slab; }),
      key(
          "pool.reserve", "memory left to the rest of the machine", kSize,
          [](auto& c) -> auto& { return c.reserve; }),
      key(
          "cuda.device", "which GPU: its number or UUID; empty: the first", kText,
          [](auto& c) -> auto& { return c.cuda_device; }),
      key(
          "cuda.dram", "DRAM is memfd or host_numa (made and pinned by the driver), or auto", kText,
          [](auto& c) -> auto& { return c.cuda_dram; }),
      key(
          "cuda.burst",
          "how long is copied at a time; engines' own copies wait as long; 0: no gaps", kDuration,
          [](auto& c) -> auto& { return c.cuda_burst; }),
      key(
          "cuda.watchdog", "a copy that stands still for longer means that the GPU is lost",
          kDuration, [](auto& c) -> auto& { return c.cuda_watchdog; }),
      key(
          "link.bandwidth", "host backend: copy rate of each device and direction, or unlimited",
          kRate, [](auto& c) -> auto& { return c.link_bandwidth; }),
      key(
          "restart.keep", "whether what is cached outlives kvd: auto or never", kText,
          [](auto& c) -> auto& { return c.disk.keep; }),
  };
}

Keys disk_keys() {
  return {
      key(
          "cache.eviction", "which cached block makes way first: default or lru", kEviction,
          [](auto& c) -> auto& { return c.disk.eviction; }),
      key(
          "disk.path", "folder where cached blocks go; empty: none", kText,
          [](auto& c) -> auto& { return c.disk.path; }),
      key(
          "disk.size", "size of all files of cached blocks; models share it", kSize,
          [](auto& c) -> auto& { return c.disk.size; }),
      key(
          "disk.floor", "room that the file system must have left for others", kSize,
          [](auto& c) -> auto& { return c.disk.floor; }),
      key(
          "disk.daily_writes", "written in a day at most, or unlimited", kSizeOrUnlimited,
          [](auto& c) -> auto& { return c.disk.daily_writes; }),
      key(
          "disk.touches", "how often a block is asked for before it is written; 1: each is", kCount,
          [](auto& c) -> auto& { return c.disk.touches; }),
  };
}

Keys engine_keys() {
  return {
      key(
          "engine.step_timeout", "an engine silent for longer is unresponsive", kDuration,
          [](auto& c) -> auto& { return c.step_timeout; }),
      key(
          "engine.evict_after", "kill a silent engine that others wait for this long, or never",
          kDurationOrNever, [](auto& c) -> auto& { return c.evict_after; }),
      key(
          "engine.standstill_after",
          "where nobody of a domain can go on for so long its latest request ends, or never",
          kDurationOrNever, [](auto& c) -> auto& { return c.standstill_after; }),
      key(
          "engine.max_domain_requests", "requests of one domain at a time", kCount,
          [](auto& c) -> auto& { return c.max_domain_requests; }),
      key(
          "engine.max_requests", "requests of one engine at a time", kCount,
          [](auto& c) -> auto& { return c.max_requests; }),
      key(
          "engine.max_engines",
          "engines attached at a time; domains share them evenly, and one user has half at most",
          kCount, [](auto& c) -> auto& { return c.max_engines; }),
      key(
          "engine.ring_spin", "how long to look at rings before a sleep; auto: 50us, 0 on two CPUs",
          kDurationOrAuto, [](auto& c) -> auto& { return c.promptness.ring_spin; }),
      key(
          "engine.realtime",
          "whether answers go before other programs: auto (where kvd may) or never", kText,
          [](auto& c) -> auto& { return c.promptness.realtime; }),
  };
}

Keys listener_keys() {
  return {
      key(
          "admin.address", "loopback address of the REST API; empty: off", kText,
          [](auto& c) -> auto& { return c.admin_address; }),
      key(
          "admin.port", "port of the REST API", kPort,
          [](auto& c) -> auto& { return c.admin_port; }),
      key(
          "admin.read", "who may read over REST: auto, open or token", kReadPolicy,
          [](auto& c) -> auto& { return c.admin_process.read; }),
      key(
          "admin.program", "what serves REST and metrics; empty: kvd-admin beside kvd", kText,
          [](auto& c) -> auto& { return c.admin_process.program; }),
      key(
          "admin.user", "whom it runs as where kvd may change users; empty: as kvd", kText,
          [](auto& c) -> auto& { return c.admin_process.user; }),
      key(
          "metrics.address", "loopback address of /metrics; empty: off", kText,
          [](auto& c) -> auto& { return c.metrics_address; }),
      key(
          "metrics.port", "port of /metrics", kPort,
          [](auto& c) -> auto& { return c.metrics_port; }),
      key(
          "log.level", "trace, debug, info, warn, error, critical or off", kLogLevel,
          [](auto& c) -> auto& { return c.log_level; }),
  };
}

Keys rotation_keys() {
  return {
      key(
          "rotation.policy", "who runs", kText,
          [](auto& c) -> auto& { return c.tuning.rotation.policy; }),
      key(
          "rotation.alpha", "weight of a rotated-out request's lag", kNumber,
          [](auto& c) -> auto& { return c.tuning.rotation.alpha; }),
      key(
          "rotation.beta_b", "rotary lag starts at beta_b x TBT goal", kNumber,
          [](auto& c) -> auto& { return c.tuning.rotation.beta_b; }),
      key(
          "rotation.beta_f", "waiting lag starts at beta_f x TTFT goal", kNumber,
          [](auto& c) -> auto& { return c.tuning.rotation.beta_f; }),
      key(
          "rotation.b_xfer", "bytes rotated a step, at most, or auto", kOptionalSize,
          [](auto& c) -> auto& { return c.tuning.rotation.b_xfer; }),
      key(
          "rotation.eager", "copy full blocks to DRAM ahead, in the background: true or false",
          kBool, [](auto& c) -> auto& { return c.tuning.rotation.eager; }),
      key(
          "rotation.overload",
          "whom unified serves where not all goals can be met: ttft or goodput", kText,
          [](auto& c) -> auto& { return c.tuning.rotation.overload; }),
      key(
          "rotation.pacing",
          "who shows tokens evenly, of engines that place their blocks: engine (nobody) or client",
          kText, [](auto& c) -> auto& { return c.tuning.rotation.pacing; }),
  };
}

Keys other_policy_keys() {
  return {
      key(
          "placement.policy", "which layers stay in HBM", kText,
          [](auto& c) -> auto& { return c.tuning.placement.policy; }),
      key(
          "placement.alpha", "weight of SLO violations", kNumber,
          [](auto& c) -> auto& { return c.tuning.placement.alpha; }),
      key(
          "placement.pause", "orbitflow: a batch that misses its goals goes on without one request",
          kBool, [](auto& c) -> auto& { return c.tuning.placement.pause; }),
      key(
          "placement.deposit", "tokens not yet due count when late ones are estimated", kBool,
          [](auto& c) -> auto& { return c.tuning.placement.deposit; }),
      key(
          "placement.window.min", "shortest planning window in tokens", kInteger,
          [](auto& c) -> auto& { return c.tuning.placement.window_min; }),
      key(
          "placement.window.max", "longest planning window in tokens", kInteger,
          [](auto& c) -> auto& { return c.tuning.placement.window_max; }),
      key(
          "admission.policy", "who may prefill", kText,
          [](auto& c) -> auto& { return c.tuning.admission.policy; }),
      key(
          "admission.alpha", "LayerKV's alpha", kNumber,
          [](auto& c) -> auto& { return c.tuning.admission.alpha; }),
      key(
          "admission.beta", "LayerKV's beta", kNumber,
          [](auto& c) -> auto& { return c.tuning.admission.beta; }),
      key(
          "load.policy", "whether prefixes found in DRAM or on disk are loaded", kText,
          [](auto& c) -> auto& { return c.tuning.load.policy; }),
  };
}

/// The class that every configuration has, settable like any other key.
Keys default_slo_keys() {
  Keys keys;
  for (const Setting<core::Slo>& goal : slo_keys()) {
    keys.push_back({"slo.default." + goal.path, goal.help,
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
    for (const Keys& part :
         {process_keys(), memory_keys(), disk_keys(), engine_keys(), listener_keys(),
          rotation_keys(), other_policy_keys(), default_slo_keys()}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }();
  return kKeys;
}

const std::vector<Setting<core::Slo>>& slo_keys() {
  static const std::vector<Setting<core::Slo>> kKeys = {
      setting<core::Slo>(
          "ttft", "goal: time to the first token", kDuration,
          [](auto& slo) -> auto& { return slo.ttft; }),
      setting<core::Slo>(
          "tbt", "goal: time between two tokens", kDuration,
          [](auto& slo) -> auto& { return slo.tbt; }),
      setting<core::Slo>(
          "tpot", "goal: mean time per token", kDuration,
          [](auto& slo) -> auto& { return slo.tpot; }),
      setting<core::Slo>(
          "gap", "goal: longest wait for a token, or auto: 10 x tbt, at least 1 s", kDurationOrAuto,
          [](auto& slo) -> auto& { return slo.gap; }),
  };
  return kKeys;
}

const std::vector<Setting<DeviceConfig>>& device_keys() {
  static const std::vector<Setting<DeviceConfig>> kKeys = {
      setting<DeviceConfig>(
          "gpu", "which GPU: its number or UUID; empty: cuda.device", kText,
          [](auto& d) -> auto& { return d.gpu; }),
  };
  return kKeys;
}

const std::vector<Setting<DomainConfig>>& domain_keys() {
  using D = DomainConfig;
  static const std::vector<Setting<D>> kKeys = {
      setting<D>(
          "name", "unique", kText, [](auto& d) -> auto& { return d.name; }),
      setting<D>(
          "uids", "users who belong to it", kIdList, [](auto& d) -> auto& { return d.uids; }),
      setting<D>(
          "gids", "groups who belong to it; without uids and gids: everyone", kIdList,
          [](auto& d) -> auto& { return d.gids; }),
      setting<D>(
          "hbm_guarantee", "always available to it", kSize,
          [](auto& d) -> auto& { return d.hbm_guarantee; }),
      setting<D>(
          "hbm_maximum", "never more than this, or unlimited", kSizeOrUnlimited,
          [](auto& d) -> auto& { return d.hbm_maximum; }),
      setting<D>(
          "dram_guarantee", "always available to it", kSize,
          [](auto& d) -> auto& { return d.dram_guarantee; }),
      setting<D>(
          "dram_maximum", "never more than this, or unlimited", kSizeOrUnlimited,
          [](auto& d) -> auto& { return d.dram_maximum; }),
      setting<D>(
          "slo_class", "class of requests that name none", kText,
          [](auto& d) -> auto& { return d.slo_class; }),
      setting<D>(
          "per_user", "each user has a domain of its own, named uid-N; no guarantees", kBool,
          [](auto& d) -> auto& { return d.per_user; }),
      setting<D>(
          "per_group",
          "each primary group that engines run with has a domain of its own, named gid-N; no "
          "guarantees",
          kBool, [](auto& d) -> auto& { return d.per_group; }),
  };
  return kKeys;
}

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
