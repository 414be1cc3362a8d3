#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "kvd/sim/engine/profile.hpp"
#include "kvd/sim/world/arrival.hpp"

/// What the commands ask of kvd/sim/workload and kvd/sim/profile, which implement it.
namespace kvd::sim {

/// How to make or read a workload; what does not apply to a source is refused, not ignored.
struct WorkloadOptions {
  std::uint64_t seed = 1;
  std::optional<double> rate;       ///< requests a second; a trace is stretched to it
  std::optional<Seconds> duration;  ///< of arrivals
  std::optional<std::size_t> requests;
  std::optional<double> cv;          ///< of the gaps between arrivals
  std::string max_tokens = "exact";  ///< what requests announce: workload/announce.hpp
  Tokens context{32768};             ///< the longest prompt and answer together
};

/// `source`: "gen:NAME" or a trace file. Errors: InvalidArgument (with line numbers for a
/// malformed trace), NotFound naming what there is.
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
