#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/engines/child_process.hpp"
#include "tests/support/daemon_process.hpp"

namespace kvd::test {

/// kvd-pattern on the kvd, with these options and a summary at its end.
[[nodiscard]] inline ChildCommand pattern_with(const KvdProcess& kvd, const std::string& name,
                                               const std::vector<std::string>& options,
                                               const std::vector<std::string>& more) {
  ChildCommand command;
  auto& all = command.arguments;
  all = {built_program("kvd-pattern"), "--endpoint", kvd.endpoint(), "--name", name, "--json"};
  all.insert(all.end(), options.begin(), options.end());
  all.insert(all.end(), more.begin(), more.end());
  return command;
}

/// Requests of 6 blocks of 64 KiB each, with goals so tight that they rotate as soon as HBM has no
/// room for all.
[[nodiscard]] inline ChildCommand pattern_command(const KvdProcess& kvd, const std::string& name,
                                                  const std::vector<std::string>& more = {},
                                                  int requests = 12) {
  return pattern_with(
      kvd, name,
      {"--requests", std::to_string(requests), "--prompt", "48", "--new", "48", "--tbt-slo-ms", "1",
       "--ttft-slo-ms", "2", "--seed", std::to_string(name.size())},
      more);
}

/// Two requests of 400 tokens, 3 MiB each in 8 layer groups: where HBM is 4 MiB and the placement
/// policy streams, their layers do.
[[nodiscard]] inline ChildCommand streaming_command(const KvdProcess& kvd, const std::string& name,
                                                    const std::vector<std::string>& more = {}) {
  return pattern_with(
      kvd, name,
      {"--requests", "2", "--prompt", "200", "--new", "200", "--layers", "8", "--layers-per-block",
       "1", "--block-tokens", "16", "--bytes-per-token", "1024"},
      more);
}

/// The summary at its end; null: there is none.
[[nodiscard]] inline nlohmann::json summary_of(ChildProcess& pattern) {
  const auto line = pattern.wait_for_line("{");
  return line ? nlohmann::json::parse(*line) : nlohmann::json();
}

}  // namespace kvd::test
