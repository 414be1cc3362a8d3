#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "ipc/vocabulary/result.hpp"

namespace kvd::sim {

struct ReportFile {
  std::string name;  ///< without a folder
  std::string content;
};

/// Whether a report may be written there, and can be: there is nothing, an empty folder, or an
/// earlier report, and a folder can be made beside it. Errors: InvalidArgument for anything else,
/// which stays as it is; Unavailable.
[[nodiscard]] Status check_report_folder(const std::filesystem::path& folder);

/// Puts the files into `folder` all at once: they are written and synced beside it, and then take
/// its place. Whatever interrupts this, `folder` is as before or complete. Errors: as above;
/// Unavailable with the system's reason when it cannot be written.
[[nodiscard]] Status write_report(const std::filesystem::path& folder,
                                  const std::vector<ReportFile>& files);

}  // namespace kvd::sim
