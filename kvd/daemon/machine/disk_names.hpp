#pragma once

#include <functional>
#include <string>

#include "ipc/vocabulary/digest.hpp"
#include "ipc/vocabulary/result.hpp"

namespace kvd::daemon {

/// What a cached block is called in files. It follows from the domain's name, the engine's
/// fingerprint and the block's digest.
using DiskNames = std::function<Digest(const std::string&, const Fingerprint&, const Digest&)>;

/// Names under the secret that the folder keeps in its file `secret`; folder and file are made
/// where they are not. Each domain has a secret of its own, derived from that one. Without it
/// nobody can tell from a name which prompt is cached, and two domains have different names for the
/// same prompt. The same after a restart.
/// Source: digest::outside_name. Owner of what it returns: one thread.
/// Errors: PermissionDenied where others may read the secret; Unavailable with the errno's words.
[[nodiscard]] Result<DiskNames> disk_names(const std::string& folder);
/// The same under this secret.
[[nodiscard]] DiskNames names_under(const Digest& secret);

}  // namespace kvd::daemon
