#pragma once

#include <optional>
#include <string>

#include "ipc/shm/client_page.hpp"
#include "ipc/shm/table_reader.hpp"
#include "ipc/transport/attach.hpp"
#include "ipc/vocabulary/clock.hpp"
#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/wire/messages.hpp"

namespace kvd::client {

/// Who asks the daemon to be let in.
struct Introduction {
  std::string endpoint;  ///< attach socket
  std::string name;
  wire::ModelShape shape;
  BootId previous_boot;  ///< of the session before, or zeros
  Bytes orphaned;        ///< regions of earlier boots still mapped
};

/// What the daemon gave on admission.
struct Admission {
  transport::AttachConnection connection;
  wire::Welcome welcome;
  shm::MappedClientPage page;
  std::optional<shm::TableReader> table;  ///< none: the session rents regions only
};

/// The attach socket to use: what the user said, else $KVD_ENDPOINT, else the daemon's default.
std::string resolve_endpoint(const std::string& chosen);

/// Connects and introduces itself.
/// Errors: Unavailable (nobody listens), DeadlineExceeded, or what the daemon refused with.
Result<Admission> attach(const Introduction& introduction, TimePoint deadline, const Clock& clock);

}  // namespace kvd::client
