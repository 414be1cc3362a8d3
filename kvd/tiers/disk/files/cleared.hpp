#pragma once

#include <optional>

#include "kvd/tiers/disk/files/folder.hpp"
#include "kvd/tiers/disk/files/requests.hpp"

namespace kvd::disk {

/// The folder's blocks up to this generation are forgotten for good (FORMAT.md, "Cleared"). 0: none
/// are; no value: the file cannot be read. Errors of writing: those of the file system, with the
/// path.
[[nodiscard]] std::optional<SlotGeneration> read_cleared(const Folder& folder);
[[nodiscard]] Status write_cleared(const Folder& folder, SlotGeneration last);

}  // namespace kvd::disk
