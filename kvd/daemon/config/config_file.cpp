#include <algorithm>
#include <sstream>

#include "ipc/vocabulary/bounded_input.hpp"
#include "kvd/daemon/config/config_sources.hpp"
#include "kvd/toml/toml.hpp"

namespace kvd::daemon {
namespace {

/// A value as a user would write it in the environment or a flag; tables and dates have none.
std::optional<std::string> text_of(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* items = node.as_array()) {
    std::string list;
    for (const toml::node& item : *items) {
      const auto text = text_of(item);
      if (!text) return {};
      list += (list.empty() ? "" : ", ") + *text;
    }
    return "[" + list + "]";
  }
  if (!node.is_number() && !node.is_boolean()) return {};
  std::ostringstream text;
  node.visit([&](const auto& value) { text << value; });
  return text.str();
}

/// Walks a parsed file and sets what it finds.
class FileReader {
 public:
  FileReader(std::string name, Config& config, FaultList& faults)
      : name_(std::move(name)), config_(config), faults_(faults) {}

  void read(const toml::table& root) {
    for (const auto& [key, node] : root) {
      if (key == "domain") {
        read_domains(node);
      } else if (key == "device") {
        read_devices(node);
      } else if (key == "slo" && node.is_table()) {
        read_classes(*node.as_table());
      } else {
        read_node(std::string(key), node);
      }
    }
  }

 private:
  [[nodiscard]] std::string origin(const toml::node& node) const {
    return name_ + ":" + std::to_string(node.source().begin.line);
  }

  /// Reads a key of Config, or a table of keys.
  void read_node(const std::string& path, const toml::node& node) {
    const toml::table* table = node.as_table();
    if (table == nullptr || table->empty() || find_key(config_keys(), path) != nullptr) {
      read_value(config_keys(), config_, path, path, node);
      return;
    }
    for (const auto& [key, child] : *table) read_node(path + "." + std::string(key), child);
  }

  /// Sets key `name` of `target`; `path` is its name in messages.
  template <class T>
  void read_value(const std::vector<Setting<T>>& keys, T& target, const std::string& name,
                  const std::string& path, const toml::node& node) {
    const Setting<T>* key = find_key(keys, name);
    if (key == nullptr) {
      if (!is_empty_known_table(path, node)) faults_.unknown(origin(node), path, full(keys, path));
    } else if (node.is_array() && !key->plain) {
      faults_.add(origin(node), path, "is a list; write one text in quotes");
    } else if (const auto text = text_of(node)) {
      apply(*key, target, *text, path, origin(node), faults_);
    } else {
      faults_.add(origin(node), path, "must be a number or a string");
    }
  }

  static bool is_empty_known_table(const std::string& path, const toml::node& node) {
    const auto& keys = config_keys();
    return node.is_table() && std::any_of(keys.begin(), keys.end(), [&](const auto& key) {
             return key.path.starts_with(path + ".");
           });
  }

  /// The names of `keys`, as they would stand in place of `path`.
  template <class T>
  static std::vector<std::string> full(const std::vector<Setting<T>>& keys,
                                       const std::string& path) {
    std::vector<std::string> paths = paths_of(keys);
    if constexpr (!std::is_same_v<T, Config>) {
      for (std::string& each : paths) each.insert(0, path, 0, path.rfind('.') + 1);
    }
    return paths;
  }

  void read_classes(const toml::table& classes) {
    for (const auto& [class_name, node] : classes) {
      const std::string path = "slo." + std::string(class_name);
      const toml::table* goals = node.as_table();
      if (goals == nullptr) {
        faults_.add(origin(node), path, "must be a table with ttft, tbt, tpot and gap");
        continue;
      }
      faults_.note_origin(path, origin(node));
      core::Slo& slo = config_.tuning.slo[std::string(class_name)];
      for (const auto& [key, goal] : *goals) {
        read_value(slo_keys(), slo, std::string(key), path + "." + std::string(key), goal);
      }
    }
  }

  /// Null, with a fault, where there is anything other than [[name]] tables.
  const toml::array* tables_of(const std::string& name, const toml::node& node) {
    const toml::array* tables = node.as_array();
    if (tables != nullptr && !tables->empty() && tables->is_homogeneous<toml::table>()) {
      return tables;
    }
    faults_.add(origin(node), name, "must be written as [[" + name + "]] tables");
    return nullptr;
  }

  void read_devices(const toml::node& node) {
    const toml::array* devices = tables_of("device", node);
    if (devices == nullptr) return;
    config_.devices.clear();
    for (const toml::node& device : *devices) {
      const std::string path = "device." + std::to_string(config_.devices.size());
      faults_.note_origin(path, origin(device));
      DeviceConfig& read = config_.devices.emplace_back();
      for (const auto& [key, value] : *device.as_table()) {
        read_value(device_keys(), read, std::string(key), path + "." + std::string(key), value);
      }
    }
  }

  void read_domains(const toml::node& node) {
    const toml::array* domains = tables_of("domain", node);
    if (domains == nullptr) return;
    config_.domains.clear();
    for (const toml::node& domain : *domains) read_domain(*domain.as_table());
  }

  void read_domain(const toml::table& table) {
    const std::string number = std::to_string(config_.domains.size() + 1);
    const std::string path = "domain." + table["name"].value_or(number);
    if (!table.contains("name")) {
      faults_.add(origin(table), path, "needs a name; add name = \"...\"");
    }
    faults_.note_origin(path, origin(table));
    DomainConfig domain;
    domain.name = table["name"].value_or(number);
    for (const auto& [key, node] : table) {
      read_value(domain_keys(), domain, std::string(key), path + "." + std::string(key), node);
    }
    config_.domains.push_back(std::move(domain));
  }

  std::string name_;
  Config& config_;
  FaultList& faults_;
};

}  // namespace

void read_config_file(const std::string& name, Config& config, FaultList& faults) {
  const auto text = read_bounded(name, kMiB);
  if (!text.ok()) {
    return faults.add(name, "cannot be read",
                      text.error().message + "; name a TOML file with --config or KVD_CONFIG");
  }
  const auto root = parse_toml(*text, name);
  if (!root.ok()) return faults.add(root.error().message);
  FileReader(name, config, faults).read(*root);
}

}  // namespace kvd::daemon
