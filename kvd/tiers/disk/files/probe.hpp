#pragma once

#include <memory>

#include "kvd/tiers/disk/files/folder.hpp"
#include "kvd/tiers/disk/files/io.hpp"

namespace kvd::disk {

/// Ok where a sector written with O_DIRECT into the folder comes back. Unsupported with the reason
/// else: some file systems refuse to open a file so, others refuse the first write.
[[nodiscard]] Status try_direct(const Folder& folder);

/// The same for an Io, which is handed back where it works. One that does not answer is kept for
/// ever: it may yet write.
[[nodiscard]] Result<std::unique_ptr<Io>> try_io(std::unique_ptr<Io> io, const Folder& folder,
                                                 bool direct);

}  // namespace kvd::disk
