#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kvd/sim/engine/profile.hpp"
#include "kvd/sim/profile/toml.hpp"

namespace kvd::sim {

/// A profile as its TOML document has it: the figures, and with each the comment that says where it
/// comes from. The comment of a figure that nobody published starts with "ours".
struct ProfileDocument {
  Profile profile;
  std::vector<TomlEntry> entries;
};

/// Starts the source of a figure that nobody published.
inline constexpr std::string_view kOurs = "ours";

/// One key of a profile's document.
struct ProfileKey {
  const char* name;
  const char* unit;
  const char* help;
  bool required;
  /// Errors: InvalidArgument for a value of another type or out of range.
  std::function<Status(Profile&, const TomlEntry&)> set;
};
[[nodiscard]] const std::vector<ProfileKey>& profile_keys();

/// Errors: InvalidArgument with name and line for a document that is not the TOML read here, an
/// unknown or missing key, a value out of range, and a profile that does not pass check().
[[nodiscard]] Result<ProfileDocument> read_profile(std::string_view text, const std::string& name);

/// The entries as a TOML document that read_profile() takes.
[[nodiscard]] std::string profile_toml(const std::vector<TomlEntry>& entries);

struct Preset {
  const char* name;
  const char* toml;
};
[[nodiscard]] const std::vector<Preset>& presets();

/// Loads a preset by its name, or a file. Errors: as load_profile().
[[nodiscard]] Result<ProfileDocument> load_document(std::string_view name_or_file);

}  // namespace kvd::sim
