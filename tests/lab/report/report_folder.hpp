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

/// Whether a report may be and can be written there: nothing is there, an empty folder, or an
/// earlier report, and beside it a folder can be made. Errors: InvalidArgument for anything else,
/// which stays as it is; Unavailable.
[[nodiscard]] Status check_report_folder(const std::filesystem::path& folder);

/// Puts the files into `folder` all at once: they are written and synced beside it, then take its
/// place, so that whatever interrupts this, `folder` is as before or complete.
/// Errors: as above; Unavailable with the system's reason when it cannot be written.
[[nodiscard]] Status write_report(const std::filesystem::path& folder,
                                  const std::vector<ReportFile>& files);

}  // namespace kvd::sim
