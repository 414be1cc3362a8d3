#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <string>
#include <vector>

namespace kvd::sim {

/// Exit statuses of every kvd-sim command.
enum ExitStatus : int { kDone = 0, kFailed = 1, kUsage = 2 };

/// What `reproduce FIGURE|all` was asked. An empty figure lists them.
struct ReproduceOptions {
  std::string figure;
  bool json = false;
  /// Runs a point, each with its own arrivals and lengths; the mean is printed with its spread.
  int seeds = 5;
  std::uint64_t first_seed = 1;
  /// Whether progress goes to `err`.
  bool progress = true;
};
[[nodiscard]] int reproduce_command(const ReproduceOptions& options, std::ostream& out,
                                    std::ostream& err);

/// `report --out DIR`: every figure, or those named, as one page and SVG files.
struct ReportOptions {
  std::filesystem::path folder;
  std::vector<std::string> figures;
  int seeds = 5;
  std::uint64_t first_seed = 1;
  bool progress = true;
};
/// All or nothing: the folder appears, or is replaced, once everything in it is written.
[[nodiscard]] int report_command(const ReportOptions& options, std::ostream& out,
                                 std::ostream& err);

/// `profiles [NAME]`: the hardware and model profiles, each number with its source.
struct ProfilesOptions {
  std::string name;
  bool json = false;
};
[[nodiscard]] int profiles_command(const ProfilesOptions& options, std::ostream& out,
                                   std::ostream& err);

/// `calibrate --from FILE`: a TOML profile out of a running daemon's status, which
/// `kvdctl status --json > FILE` writes ("-" reads standard input).
struct CalibrateOptions {
  std::string from;
  /// The profile whose values stand where the daemon measures nothing.
  std::string base;
  std::string name = "measured";
  /// Empty: standard output.
  std::string to;
};
[[nodiscard]] int calibrate_command(const CalibrateOptions& options, std::ostream& out,
                                    std::ostream& err);

}  // namespace kvd::sim
