#include "kvd/daemon/config/config_print.hpp"

#include <cstdio>
#include <set>
#include <utility>

#include "kvd/daemon/config/config.hpp"
#include "kvd/daemon/config/config_keys.hpp"
#include "kvd/daemon/config/config_values.hpp"

namespace kvd::daemon {
namespace {

/// A TOML basic string.
std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      result += std::string("\\") + c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04X", static_cast<unsigned>(c));
      result += escape;
    } else {
      result += c;
    }
  }
  return result + "\"";
}

template <class T>
std::string toml_value(const Setting<T>& key, const T& source) {
  const std::string text = key.get(source);
  return key.plain ? text : quoted(text);
}

template <class T>
std::string table_of(const std::string& header, const std::vector<Setting<T>>& keys,
                     const T& source) {
  std::string text = "\n" + header + "\n";
  for (const Setting<T>& key : keys) text += key.path + " = " + toml_value(key, source) + "\n";
  return text;
}

/// Keys that concern the whole process. SLO classes are printed by name, and the default class is
/// one of them.
std::string toml_of_keys(const Config& config) {
  std::string text;
  std::string open_table;
  for (const Setting<Config>& key : config_keys()) {
    if (key.path.starts_with("slo.")) continue;
    const std::size_t dot = key.path.rfind('.');
    const std::string table = dot == std::string::npos ? "" : key.path.substr(0, dot);
    if (table != open_table) text += "\n[" + table + "]\n";
    open_table = table;
    text += key.path.substr(dot + 1) + " = " + toml_value(key, config) + "\n";
  }
  return text;
}

}  // namespace

std::string to_toml(const Config& config) {
  std::string text = toml_of_keys(config);
  for (const auto& [name, slo] : config.tuning.slo) {
    text += table_of("[slo." + quoted(name) + "]", slo_keys(), slo);
  }
  for (const DeviceConfig& device : config.devices) {
    text += table_of("[[device]]", device_keys(), device);
  }
  for (const DomainConfig& domain : config.domains) {
    text += table_of("[[domain]]", domain_keys(), domain);
  }
  return text;
}

std::vector<std::pair<std::string, std::string>> effective_values(const Config& config) {
  Config effective = config;
  effective.slab = config.slab_size();
  std::vector<std::pair<std::string, std::string>> values;
  for (const Setting<Config>& key : config_keys()) {
    if (!key.path.starts_with("slo.")) values.emplace_back(key.path, key.get(effective));
  }
  for (const auto& [name, slo] : config.tuning.slo) {
    for (const auto& key : slo_keys()) {
      values.emplace_back("slo." + name + "." + key.path, key.get(slo));
    }
  }
  for (std::size_t i = 0; i < config.devices.size(); ++i) {
    for (const auto& key : device_keys()) {
      values.emplace_back("device." + std::to_string(i) + "." + key.path,
                          key.get(config.devices[i]));
    }
  }
  for (const DomainConfig& domain : config.domains) {
    for (const auto& key : domain_keys()) {
      if (key.path == "name") continue;
      values.emplace_back("domain." + domain.name + "." + key.path, key.get(domain));
    }
  }
  return values;
}

std::vector<std::string> differences(const Config& before, const Config& after) {
  const auto old = effective_values(before), now = effective_values(after);
  const std::map<std::string, std::string> was(old.begin(), old.end()), is(now.begin(), now.end());
  std::vector<std::string> out;
  const auto told = [&](std::string line, const std::string& value, const std::string& change) {
    line += ": ";
    line += value;
    line += change;
    out.push_back(std::move(line));
  };
  for (const auto& [key, value] : now) {
    const auto found = was.find(key);
    if (found == was.end()) {
      told(key, value, ", new");
    } else if (found->second != value) {
      told(key, found->second, " -> " + value);
    }
  }
  for (const auto& [key, value] : old) {
    if (!is.contains(key)) told(key, value, ", removed");
  }
  return out;
}

std::vector<admin::ConfigOrigin> config_origins(const Config& configured, const Config& in_force) {
  const auto values = effective_values(configured);
  const std::map<std::string, std::string> first(values.begin(), values.end());
  std::vector<admin::ConfigOrigin> out;
  std::set<std::string> there;
  for (const auto& [key, value] : effective_values(in_force)) {
    there.insert(key);
    admin::ConfigOrigin one{key, "default", {}};
    if (const auto set = configured.origins.find(key); set != configured.origins.end()) {
      one.origin = set->second;
    }
    const auto before = first.find(key);
    if (before == first.end() || before->second != value) {
      one.origin = "live";
      one.configured = before == first.end() ? "" : before->second;
    }
    out.push_back(std::move(one));
  }
  for (const auto& [key, value] : values) {  // a class that was removed live has keys only here
    if (!there.contains(key)) out.push_back({key, "live", value});
  }
  return out;
}

std::string help_text() {
  std::string text =
      "kvd [--config FILE] [--KEY VALUE | --KEY=VALUE]...\n"
      "Owns the KV-cache memory of this machine and lends it to inference engines.\n\n"
      "  --config FILE    settings in TOML (or KVD_CONFIG); without one the defaults run\n"
      "  --check-config   list every fault of the configuration and exit\n"
      "  --print-config   print the configuration in effect as TOML and exit\n"
      "  --print-unit     print the drop-in for systemd that the configuration asks for "
      "(MemoryMax, restarts, folders)\n"
      "  --version, -V    print the version and exit\n"
      "  --help, -h       print this and exit\n\n"
      "Keys, with their defaults. In the file pool.hbm is hbm in [pool], in the environment\n"
      "KVD_POOL_HBM. A flag outweighs the environment, the environment the file.\n"
      "[slo.CLASS], [[device]] and [[domain]] tables stand in the file only.\n\n";
  const Config defaults;
  for (const Setting<Config>& key : config_keys()) {
    const std::string value = key.get(defaults);
    const std::string shown = "  --" + key.path + " " + (value.empty() ? "\"\"" : value);
    text += shown + std::string(shown.size() < 40 ? 40 - shown.size() : 1, ' ') + key.help + "\n";
    text += "      when: " + key.when + "\n";
  }
  text +=
      "\nExit status: 0 ended in order, 1 cannot start, 2 wrong configuration, 3 the GPU is lost,\n"
      "75 not one slab fits yet.\n";
  return text;
}

}  // namespace kvd::daemon
