#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/engines/child_process.hpp"
#include "tests/lab/bench/serve_run.hpp"
#include "tests/support/daemon_process.hpp"

namespace kvd::bench {

/// A daemon and its engines, all of them processes, for as long as this object lives. Ends the
/// program with the log where one of them does not start.
class ServeNode {
 public:
  ServeNode(const ServeStage& stage, const core::Tuning& tuning);

  [[nodiscard]] std::uint16_t port(std::size_t engine) const { return engines_[engine]->port(); }
  /// A document of the daemon's REST interface, e.g. "/v1/plan".
  [[nodiscard]] nlohmann::json document(const std::string& path) const;
  /// CPU time of the thread that decides, which is the first thread of the process.
  [[nodiscard]] double control_cpu_s() const;
  /// Adds what daemon and engines have counted since they began.
  void account(ServeRun& run) const;

 private:
  class Engine {
   public:
    Engine(const std::string& endpoint, const ServeStage& stage);
    [[nodiscard]] std::uint16_t port() const { return port_; }
    [[nodiscard]] nlohmann::json health() const;

   private:
    std::uint16_t port_;
    test::ChildProcess process_;
  };

  const test::RuntimeFolder folder_;
  test::KvdProcess daemon_;
  std::vector<std::unique_ptr<Engine>> engines_;
};

}  // namespace kvd::bench
