#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "ipc/vocabulary/result.hpp"

namespace kvd::sim::grid {

/// A file of results, one JSON line each, that outlives the process: results in it are not computed
/// again. Its first line says what they are results of.
/// Owner: one thread at a time.
class Ledger {
 public:
  using Json = nlohmann::ordered_json;

  /// Opens or begins it. An unfinished last line is cut off. Errors: InvalidArgument for a file
  /// whose first line is not `header`, or that is no ledger; Unavailable where it cannot be read or
  /// written.
  [[nodiscard]] static Result<Ledger> open(const std::filesystem::path& file, const Json& header);

  /// Lines by their `name`.
  [[nodiscard]] const std::map<std::string, Json>& lines() const { return lines_; }
  /// Errors: Unavailable; then the line is not in the file.
  [[nodiscard]] Status add(const std::string& name, const Json& line);

 private:
  explicit Ledger(std::filesystem::path file) : file_(std::move(file)) {}
  [[nodiscard]] Status read(const Json& header);
  [[nodiscard]] Status append(const Json& line);

  std::filesystem::path file_;
  std::map<std::string, Json> lines_;
};

}  // namespace kvd::sim::grid
