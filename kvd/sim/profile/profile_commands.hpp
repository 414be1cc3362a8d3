#pragma once

#include <iosfwd>
#include <string>

namespace kvd::sim {

/// `profiles [NAME]`: the hardware and model profiles, each number with its source.
struct ProfilesOptions {
  std::string name;
  bool json = false;
};
[[nodiscard]] int profiles_command(const ProfilesOptions& options, std::ostream& out,
                                   std::ostream& err);

/// `calibrate --from FILE`: makes a TOML profile from a running daemon's status, which `kvdctl
/// status --json > FILE` writes ("-" reads standard input).
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
