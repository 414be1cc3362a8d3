#pragma once

#include "ipc/digest/sha256.hpp"
#include "ipc/vocabulary/digest.hpp"
#include "ipc/vocabulary/ids.hpp"

namespace kvd::daemon {

/// 128 bits from the kernel's generator.
[[nodiscard]] SessionKey make_session_key();
/// What is recorded of the key for the next daemon: an engine that knows the key can prove it.
[[nodiscard]] inline Digest proof_of(const SessionKey& key) { return digest::Sha256()(key.bytes); }

}  // namespace kvd::daemon
