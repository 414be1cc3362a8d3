#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tests/engines/child_process.hpp"
#include "tests/support/runtime_folder.hpp"

namespace kvd::test {

/// A folder with a model and an input, and the commands that run engines in it.
class Workbench {
 public:
  /// Enough tokens for more than 100 distinct ones, below which a comparison proves nothing.
  static constexpr int kTokens = 256;

  Workbench();

  [[nodiscard]] std::string file(const std::string& name) const { return folder_.file(name); }

  /// An engine on its own memory that records into `record`; `options` are added.
  [[nodiscard]] ChildCommand plain_engine(const std::string& record,
                                          const std::vector<std::string>& options = {}) const;
  /// The same engine with the plugin, looking for kvd at `endpoint`.
  [[nodiscard]] ChildCommand kvd_engine(const std::string& record, const std::string& endpoint,
                                        const std::vector<std::string>& options = {}) const;

  /// The exit status of kvd-llama-compare on two records; at most `distinct` tokens are too few.
  [[nodiscard]] std::optional<int> compare(const std::string& a, const std::string& b,
                                           int distinct = 100) const;

 private:
  RuntimeFolder folder_;
};

/// Runs `command` to its end; nothing if it does not end in time.
std::optional<int> run_to_end(const ChildCommand& command);

}  // namespace kvd::test
