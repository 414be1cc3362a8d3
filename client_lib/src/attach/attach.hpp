#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "client_lib/src/memory/gpu.hpp"
#include "ipc/shm/client_page.hpp"
#include "ipc/shm/table_reader.hpp"
#include "ipc/transport/attach.hpp"
#include "ipc/transport/command_client.hpp"
#include "ipc/vocabulary/clock.hpp"
#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/unique_fd.hpp"
#include "ipc/wire/messages.hpp"

namespace kvd::client {

/// What a client tells the daemon when it asks to be let in.
struct Introduction {
  std::string endpoint;  ///< the attach socket
  std::string name;
  wire::ModelShape shape;
  wire::TransportKind transport = wire::TransportKind::kZmq;
  BootId previous_boot;  ///< boot of the previous session, or zeros
  Bytes orphaned;        ///< bytes in regions of earlier boots that are still mapped
  /// The kinds of slabs that the engine can use, by wire::slab_kind_bit().
  std::uint32_t slab_kinds = wire::slab_kind_bit(wire::SlabKind::kHostMemfd);
  bool maps = true;  ///< false: it maps no slab, so no GPU is looked for
  bool streams_layers = false;
  std::optional<wire::JoinGroup> group;  ///< set for a rank of a tensor-parallel group
  /// The only GPU whose memory is acceptable; none: any is.
  std::optional<std::array<std::uint8_t, 16>> device;
};

/// What the daemon gave on admission.
struct Admission {
  transport::AttachConnection connection;
  wire::Welcome welcome;
  shm::MappedClientPage page;
  std::optional<shm::TableReader> table;  ///< none: the session only leases regions
  std::shared_ptr<Gpu> gpu;               ///< none: slabs are host memory, or nothing is mapped
  UniqueFd bell;  ///< wakes the daemon; none: the session has no requests and no ring
  std::unique_ptr<transport::CommandClient> commands;
  wire::TransportKind transport = wire::TransportKind::kZmq;
  bool in_group = false;
  bool maps = true;

  [[nodiscard]] std::shared_ptr<SlabMemory> memory() const {
    if (!maps) return no_memory();
    return gpu != nullptr ? gpu : host_memory();
  }
};

/// The attach socket to use: the user's choice, else $KVD_ENDPOINT, else the daemon's default.
std::string resolve_endpoint(const std::string& chosen);

/// Connects and introduces itself. Until the deadline it tries again where the daemon hangs up
/// before it has answered. Errors: Unavailable (nobody listens, or the daemon hung up),
/// DeadlineExceeded, the daemon's refusal, or Unsupported for a daemon whose slabs are memory of a
/// GPU that this process cannot use.
Result<Admission> attach(const Introduction& introduction, TimePoint deadline, const Clock& clock);

}  // namespace kvd::client
