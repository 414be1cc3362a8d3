#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "kvd/daemon/config/config.hpp"

namespace kvd::daemon {

/// One setting: its name, and how it goes into and out of a T as text.
template <class T>
struct Setting {
  std::string path;  ///< "pool.hbm"
  std::string help;  ///< one line
  std::string when;  ///< when to set it, one line
  std::function<Status(T&, const std::string&)> set;
  std::function<std::string(const T&)> get;
  bool plain = false;  ///< TOML writes it without quotes
};

/// Every setting that has one place in Config, in the order of print-outs. Settings of one TOML
/// table stand together.
[[nodiscard]] const std::vector<Setting<Config>>& config_keys();
/// Goals of one [slo.<class>] table.
[[nodiscard]] const std::vector<Setting<core::Slo>>& slo_keys();
/// Settings of one [[device]] table.
[[nodiscard]] const std::vector<Setting<DeviceConfig>>& device_keys();
/// Settings of one [[domain]] table.
[[nodiscard]] const std::vector<Setting<DomainConfig>>& domain_keys();

template <class T>
const Setting<T>* find_key(const std::vector<Setting<T>>& keys, std::string_view path) {
  for (const Setting<T>& key : keys) {
    if (key.path == path) return &key;
  }
  return nullptr;
}

template <class T>
std::vector<std::string> paths_of(const std::vector<Setting<T>>& keys) {
  std::vector<std::string> paths;
  paths.reserve(keys.size());
  for (const Setting<T>& key : keys) paths.push_back(key.path);
  return paths;
}

/// "pool.hbm" -> "KVD_POOL_HBM"
[[nodiscard]] std::string variable_of(std::string_view path);

/// The candidate that a user who wrote `name` most likely meant. Precondition: candidates is not
/// empty.
[[nodiscard]] std::string nearest(std::string_view name,
                                  const std::vector<std::string>& candidates);

}  // namespace kvd::daemon
