#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "kvd/sim/engine/profile.hpp"
#include "kvd/sim/world/arrival.hpp"

/// What the commands need from kvd/sim/workload and kvd/sim/profile, which implement it.
namespace kvd::sim {

/// How to make or read a workload. An option that does not apply to a source is refused, not
/// ignored.
struct WorkloadOptions {
  std::uint64_t seed = 1;
  std::optional<double> rate;       ///< requests a second; a trace is stretched to it
  std::optional<Seconds> duration;  ///< length of time in which requests arrive
  std::optional<std::size_t> requests;
  std::optional<double> cv;  ///< variation of the gaps between arrivals
  /// The lengths that requests announce: workload/announce.hpp.
  std::string max_tokens = "exact";
  Tokens context{32768};  ///< the largest sum of prompt and answer
};

/// `source`: "gen:NAME" or a trace file. Errors: InvalidArgument (with line numbers for a malformed
/// trace), NotFound naming the sources that exist.
[[nodiscard]] Result<Workload> make_workload(std::string_view source,
                                             const WorkloadOptions& options);
struct NamedText {
  std::string name;
  std::string description;
};
[[nodiscard]] std::vector<NamedText> workload_names();

/// A preset's name, or a TOML file. Errors: NotFound naming the presets, InvalidArgument.
[[nodiscard]] Result<Profile> load_profile(std::string_view name_or_file);
[[nodiscard]] std::vector<NamedText> profile_names();

}  // namespace kvd::sim
