#include "kvd/daemon/config/config_sources.hpp"

#include <algorithm>
#include <array>
#include <string_view>

namespace kvd::daemon {
namespace {

/// These are not keys of the daemon, but set on purpose where it runs: by users of clients, tests
/// and engines, or by Kubernetes for a Service named kvd. A name that ends in '_' is a prefix.
constexpr std::array<std::string_view, 17> kForeignVariables = {
    "KVD_CONFIG",    "KVD_ENDPOINT",   "KVD_TRACES",           "KVD_REQUIRE",
    "KVD_SEED",      "KVD_ADMIN_URL",  "KVD_ADMIN_TOKEN_FILE", "KVD_TEST_",
    "KVD_LLAMA_",    "KVD_PORT",       "KVD_SERVICE_",         "KVD_PORT_",
    "KVD_HISTORIES", "KVD_FIRST_SEED", "KVD_CLIENT_LIBRARY",   "KVD_VLLM",
    "KVD_VLLM_"};

bool is_foreign(std::string_view name) {
  return std::any_of(kForeignVariables.begin(), kForeignVariables.end(),
                     [&](std::string_view known) {
                       return known.ends_with('_') ? name.starts_with(known) : name == known;
                     });
}

const Setting<Config>* key_of_variable(std::string_view name) {
  for (const Setting<Config>& key : config_keys()) {
    if (variable_of(key.path) == name) return &key;
  }
  return nullptr;
}

std::vector<std::string> variables() {
  std::vector<std::string> names = {"KVD_CONFIG"};
  for (const Setting<Config>& key : config_keys()) names.push_back(variable_of(key.path));
  return names;
}

}  // namespace

void FaultList::add_final(const std::string& fault) {
  std::string path = fault.substr(0, fault.find(": "));
  // A key that was set has its own origin. A key of a table that was given has the origin of the
  // table.
  for (auto found = origins_.find(path);; found = origins_.find(path)) {
    if (found != origins_.end()) {
      lines_.push_back(found->second + ": " + fault);
      return;
    }
    const std::size_t dot = path.rfind('.');
    if (dot == std::string::npos) break;
    path.resize(dot);
  }
  lines_.push_back(fault);
}

std::string FaultList::joined() const {
  std::string text;
  for (const std::string& line : lines_) text += (text.empty() ? "" : "\n") + line;
  return text;
}

void read_environment(const char* const* environment, Config& config, FaultList& faults) {
  for (const char* const* entry = environment; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    const std::string name(text.substr(0, equals));
    if (equals == std::string_view::npos || !name.starts_with("KVD_")) continue;
    const std::string value(text.substr(equals + 1));
    if (const Setting<Config>* key = key_of_variable(name)) {
      apply(*key, config, value, key->path, name, faults);
    } else if (!is_foreign(name)) {
      faults.unknown("environment", name, variables());
    }
  }
}

std::string variable(const char* const* environment, const std::string& name) {
  const std::string start = name + "=";
  for (const char* const* entry = environment; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (text.starts_with(start)) return std::string(text.substr(start.size()));
  }
  return "";
}

}  // namespace kvd::daemon
