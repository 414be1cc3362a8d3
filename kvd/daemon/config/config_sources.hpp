#pragma once

#include <map>
#include <string>
#include <vector>

#include "kvd/daemon/config/config.hpp"
#include "kvd/daemon/config/config_keys.hpp"

namespace kvd::daemon {

/// Collects faults and remembers where each key was set. So a fault that is found later, when all
/// values are together, still names its file and line, variable or flag.
class FaultList {
 public:
  void add(std::string line) { lines_.push_back(std::move(line)); }
  void add(const std::string& origin, const std::string& path, const std::string& message) {
    lines_.push_back(origin + ": " + path + ": " + message);
  }
  void unknown(const std::string& origin, const std::string& name,
               const std::vector<std::string>& candidates) {
    add(origin, name, "unknown; the nearest known one is " + nearest(name, candidates));
  }
  /// A fault of the finished configuration, "pool.hbm: why".
  void add_final(const std::string& fault);
  void note_origin(const std::string& path, const std::string& origin) { origins_[path] = origin; }

  [[nodiscard]] const std::map<std::string, std::string>& origins() const { return origins_; }

  [[nodiscard]] bool empty() const { return lines_.empty(); }
  [[nodiscard]] std::string joined() const;

 private:
  std::vector<std::string> lines_;
  std::map<std::string, std::string> origins_;
};

/// Sets one key of `target` and notes the origin, or the fault. `path` is its full name.
template <class T>
void apply(const Setting<T>& key, T& target, const std::string& text, const std::string& path,
           const std::string& origin, FaultList& faults) {
  faults.note_origin(path, origin);
  const Status status = key.set(target, text);
  if (!status.ok()) faults.add(origin, path, status.error().message);
}

/// Sets the keys that the TOML file `name` contains.
void read_config_file(const std::string& name, Config& config, FaultList& faults);

/// Sets the keys that the KVD_* variables of a NULL-terminated environ contain.
void read_environment(const char* const* environment, Config& config, FaultList& faults);

/// The value of one variable, or "".
[[nodiscard]] std::string variable(const char* const* environment, const std::string& name);

}  // namespace kvd::daemon
