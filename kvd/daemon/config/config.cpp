#include "kvd/daemon/config/config.hpp"

#include <unistd.h>

#include <filesystem>
#include <string_view>

#include "kvd/daemon/config/config_keys.hpp"
#include "kvd/daemon/config/config_print.hpp"
#include "kvd/daemon/config/config_sources.hpp"
#include "kvd/daemon/config/service_manager.hpp"

namespace kvd::daemon {
namespace {

using Action = Invocation::Action;

constexpr const char* kOrigin = "command line";

struct FlagValue {
  const Setting<Config>* key;
  std::string text;
};

struct CommandLine {
  Action action = Action::kRun;
  std::string file;
  std::vector<FlagValue> values;
};

std::vector<std::string> flags() {
  std::vector<std::string> names = {"--config",     "--check-config", "--print-config",
                                    "--print-unit", "--help",         "--version"};
  for (const Setting<Config>& key : config_keys()) names.push_back("--" + key.path);
  return names;
}

std::optional<Action> action_of(std::string_view flag) {
  if (flag == "--check-config") return Action::kCheck;
  if (flag == "--print-config") return Action::kPrint;
  if (flag == "--print-unit") return Action::kPrintUnit;
  if (flag == "--help" || flag == "-h") return Action::kHelp;
  if (flag == "--version" || flag == "-V") return Action::kVersion;
  return {};
}

/// Sorts the arguments into the action, the file and values of keys.
class ArgumentReader {
 public:
  ArgumentReader(int argc, const char* const* argv, FaultList& faults)
      : arguments_(argv + (argc > 0 ? 1 : 0), argv + argc), faults_(faults) {}

  CommandLine read() {
    while (at_ < arguments_.size()) read_argument(arguments_[at_++]);
    return std::move(result_);
  }

 private:
  void read_argument(const std::string& argument) {
    const std::size_t equals = argument.find('=');
    const std::string flag = argument.substr(0, equals);
    if (const auto action = action_of(argument)) {
      // Help wins over everything, so that it can be added to any command line.
      if (result_.action != Action::kHelp) result_.action = *action;
    } else if (flag == "--config") {
      result_.file = value(argument, equals);
    } else if (const auto* key =
                   flag.starts_with("--") ? find_key(config_keys(), flag.substr(2)) : nullptr) {
      result_.values.push_back({key, value(argument, equals)});
    } else if (action_of(flag)) {
      faults_.add(kOrigin, flag, "takes no value");
    } else if (flag.starts_with('-')) {
      faults_.unknown(kOrigin, flag, flags());
    } else {
      faults_.add(kOrigin, argument, "is no flag; write --KEY VALUE, see --help");
    }
  }

  /// The text after '=', or else the next argument. Values may start with one dash (-0.5), not with
  /// two.
  std::string value(const std::string& argument, std::size_t equals) {
    if (equals != std::string::npos) return argument.substr(equals + 1);
    if (at_ < arguments_.size() && !arguments_[at_].starts_with("--")) return arguments_[at_++];
    faults_.add(kOrigin, argument, "needs a value");
    return "";
  }

  std::vector<std::string> arguments_;
  std::size_t at_ = 0;
  CommandLine result_;
  FaultList& faults_;
};

std::string file_in_force(const CommandLine& line, const char* const* environment) {
  return line.file.empty() ? variable(environment, "KVD_CONFIG") : line.file;
}

Config merged(const CommandLine& line, const std::string& file, const char* const* environment,
              FaultList& faults) {
  Config config;
  if (!file.empty()) read_config_file(file, config, faults);
  read_environment(environment, config, faults);
  for (const FlagValue& flag : line.values) {
    apply(*flag.key, config, flag.text, flag.key->path, kOrigin, faults);
  }
  for (const std::string& fault : daemon::faults(config)) faults.add_final(fault);
  config.origins = faults.origins();
  return config;
}

std::string printed(Config config, const char* const* environment) {
  resolve_paths(config, environment);
  return to_toml(config);
}

}  // namespace

std::vector<std::string> RemoteSettings::list() const {
  std::vector<std::string> all;
  constexpr const char* kBetween = ", \t";
  for (std::size_t at = servers.find_first_not_of(kBetween); at != std::string::npos;) {
    const std::size_t end = servers.find_first_of(kBetween, at);
    all.push_back(servers.substr(at, end - at));
    at = servers.find_first_not_of(kBetween, end);
  }
  return all;
}

Result<Invocation> parse_invocation(int argc, const char* const* argv,
                                    const char* const* environment) {
  FaultList faults;
  const CommandLine line = ArgumentReader(argc, argv, faults).read();
  Invocation invocation{.action = line.action, .file = {}, .config = {}, .text = {}};
  // These actions answer even where the configuration is broken.
  if (line.action == Action::kHelp || line.action == Action::kVersion) {
    invocation.text = line.action == Action::kHelp ? help_text() : "kvd " KVD_VERSION "\n";
    return invocation;
  }
  invocation.file = file_in_force(line, environment);
  invocation.config = merged(line, invocation.file, environment, faults);
  if (!faults.empty()) return make_error(ErrorCode::kInvalidArgument, faults.joined());
  if (line.action == Action::kPrint) invocation.text = printed(invocation.config, environment);
  if (line.action == Action::kPrintUnit) invocation.text = unit_text(invocation.config);
  return invocation;
}

void resolve_paths(Config& config, const char* const* environment) {
  if (config.runtime_dir.empty()) {
    const std::string own = variable(environment, "XDG_RUNTIME_DIR");
    const bool usable = own.starts_with('/');  // by its specification other values are ignored
    config.runtime_dir = ::geteuid() == 0 || !usable ? "/run/kvd" : own + "/kvd";
  }
  // Engines and kvdctl run in other folders than kvd, whose own folder may no longer exist.
  const auto make_absolute = [](std::string& path) {
    std::error_code no_folder;
    const auto absolute = std::filesystem::absolute(path, no_folder);
    if (!no_folder) path = absolute;
  };
  make_absolute(config.runtime_dir);
  const auto fill = [&](std::string& path, const char* name) {
    if (path.empty()) path = config.runtime_dir + "/" + name;
    make_absolute(path);
  };
  fill(config.attach_socket, "attach.sock");
  fill(config.command_socket, "command.sock");
  fill(config.token_file, "admin.token");
}

}  // namespace kvd::daemon
