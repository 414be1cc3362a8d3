#pragma once

#include <vector>

#include "kvd/tiers/disk/files/folder.hpp"
#include "kvd/tiers/disk/files/layout.hpp"
#include "kvd/tiers/disk/files/requests.hpp"

namespace kvd::disk {

/// The index of a clean stop, on disk until the next start. FORMAT.md, "Checkpoint".
/// Cost: the file as a whole in memory, 80 bytes a block.
[[nodiscard]] Status write_checkpoint(const Folder& folder, const Layout& layout,
                                      const std::vector<FoundBlock>& blocks);

/// Reads and removes it. NotFound where there is none, or none that can be trusted: scan then.
[[nodiscard]] Result<std::vector<FoundBlock>> take_checkpoint(const Folder& folder,
                                                              const Layout& layout,
                                                              std::uint32_t slots);

}  // namespace kvd::disk
