#pragma once

#include <memory>
#include <optional>
#include <string>

#include "ipc/shm/client_page.hpp"
#include "ipc/shm/table_writer.hpp"
#include "ipc/transport/attach.hpp"
#include "ipc/transport/command_server.hpp"
#include "ipc/transport/ring.hpp"
#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/unique_fd.hpp"
#include "kvd/daemon/base/page_lease.hpp"

namespace kvd::daemon {

/// The daemon's end of one session: its socket, its shared pages, and who it is.
struct Peer {
  EngineId engine;
  DomainId domain;
  Generation generation;
  SessionKey key;
  std::string name;
  std::uint16_t version = 0;
  transport::PeerIdentity process;
  transport::AttachConnection connection;
  std::shared_ptr<shm::ServedClientPage> page;  ///< shared with the liveness thread
  std::shared_ptr<PageLease> lease;             ///< shared with the copies under way
  std::optional<shm::TableWriter> table;        ///< level 3 only
  std::optional<transport::RingPort> ring;      ///< where its commands come from; none: ZeroMQ
  transport::PeerId connection_of_commands;     ///< over ZeroMQ: where the last one came from
  UniqueFd bell;  ///< for a level-3 session without a ring: layer_done() rings it

  [[nodiscard]] int bell_fd() const { return ring ? ring->bell() : bell.get(); }

  std::uint64_t sequence = 0;  ///< of its last command
  struct Keeper {
    std::uint64_t heartbeat = 0;  ///< as last read
    bool watched = false;         ///< its word is
  } keeper;
  bool ended = false;      ///< said goodbye or was dropped; kept until its process is gone
  EngineId group;          ///< engine of its tensor-parallel group; none: it is one by itself
  std::uint32_t rank = 0;  ///< in the group
  DeviceId device;         ///< where it has its HBM

  /// Its socket is open; of a rank whose group has ended it still is, for its goodbye.
  [[nodiscard]] bool connected() const { return connection.fd() >= 0; }
  /// The engine it is, or is a rank of, to the Controller.
  [[nodiscard]] EngineId speaks_for() const { return group ? group : engine; }
};

}  // namespace kvd::daemon
