#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/engines/child_process.hpp"
#include "tests/support/runtime_folder.hpp"

namespace kvd::test {

/// How a `kvd` is to run; small pools, so that a test takes megabytes.
struct KvdSettings {
  std::string hbm = "16MiB";
  std::string dram = "32MiB";
  std::string slab = "2MiB";
  std::string bandwidth = "unlimited";
  std::string extra = {};  ///< more TOML: tables of their own, after all else
  std::string backend = "host";
  std::vector<std::string> environment = {};  ///< as in ChildCommand
  std::vector<std::string> under = {};        ///< a program and its arguments, which start kvd
};

/// Answer of an HTTP server.
struct HttpAnswer {
  int status = 0;  ///< 0: nobody answered
  std::string body;
};

/// A real `kvd` in a folder of the test's, on free ports. It is killed with the
/// test, whichever way that ends.
class KvdProcess {
 public:
  explicit KvdProcess(const RuntimeFolder& folder, const KvdSettings& settings = {});

  /// Whether it said that engines may attach, before kPatience was over.
  [[nodiscard]] bool wait_ready() const;
  /// The attach socket.
  [[nodiscard]] const std::string& endpoint() const { return endpoint_; }
  [[nodiscard]] std::uint16_t admin_port() const { return admin_port_; }
  [[nodiscard]] std::uint16_t metrics_port() const { return metrics_port_; }
  [[nodiscard]] const std::string& config_file() const { return config_file_; }
  [[nodiscard]] pid_t pid() const { return process_->pid(); }

  void signal(int number) const { process_->signal(number); }
  /// The exit status, 128 + n after signal n; nothing when it did not end in time.
  [[nodiscard]] std::optional<int> wait() { return process_->wait(); }
  [[nodiscard]] std::string log() const { return process_->errors(); }

  [[nodiscard]] HttpAnswer get(const std::string& path) const;
  /// A PATCH with the bearer token, as it goes over the wire.
  [[nodiscard]] std::string patch_text(const std::string& path, const std::string& json) const;
  /// With the bearer token.
  [[nodiscard]] HttpAnswer patch(const std::string& path, const std::string& json) const;
  /// Likewise.
  [[nodiscard]] HttpAnswer clear_cache() const;
  [[nodiscard]] std::string metrics() const;
  /// The value of a series as it stands in the exposition, e.g. kvd_policy_info{...}; none: absent.
  [[nodiscard]] std::optional<double> metric(const std::string& series) const;

 private:
  [[nodiscard]] std::string authorization() const;

  std::string endpoint_;
  std::string token_file_;
  std::string config_file_;
  std::uint16_t admin_port_ = 0;
  std::uint16_t metrics_port_ = 0;
  std::optional<ChildProcess> process_;
};

/// The TOML of a `kvd` in `folder`.
[[nodiscard]] std::string toml_of(const RuntimeFolder& folder, const KvdSettings& settings,
                                  std::uint16_t admin_port, std::uint16_t metrics_port);

/// Runs a `kvd` that is expected to end by itself.
struct KvdRun {
  std::optional<int> status;
  std::string output;  ///< of stderr
};
[[nodiscard]] KvdRun run_kvd(const std::vector<std::string>& arguments,
                             const std::vector<std::string>& environment = {});

/// The answer of a server on this machine.
[[nodiscard]] HttpAnswer http_get(std::uint16_t port, const std::string& path);

/// The first process that the process has started and that is there; 0: none.
[[nodiscard]] pid_t child_of(pid_t parent);

/// Where the build put a program.
[[nodiscard]] std::string built_program(const std::string& name);

}  // namespace kvd::test
