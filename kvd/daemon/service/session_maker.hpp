#pragma once

#include <optional>
#include <string>

#include "ipc/transport/attach.hpp"
#include "ipc/wire/attach_codec.hpp"
#include "kvd/daemon/base/event_log.hpp"
#include "kvd/daemon/base/poller.hpp"
#include "kvd/daemon/config/config.hpp"
#include "kvd/daemon/config/domains.hpp"
#include "kvd/daemon/memory/device.hpp"
#include "kvd/daemon/service/rings.hpp"
#include "kvd/daemon/sessions/event_feed.hpp"
#include "kvd/daemon/sessions/groups.hpp"
#include "kvd/daemon/sessions/session_table.hpp"

namespace kvd::daemon {

/// What a connection has said of itself before it is let in.
struct Introduction {
  wire::Hello hello;
  std::optional<wire::JoinGroup> join;  ///< follows where the hello says so
  std::uint16_t version = 0;            ///< that both sides speak
};

/// Turns an introduction into a session: looks whether there is room, makes what is the session's
/// own, and sends the welcome. A session that could not be told so never existed.
/// Source: ipc/PROTOCOL.md section 2.
/// Owner:  control thread. What it is given must outlive it.
class SessionMaker {
 public:
  struct Uses {
    const Config& config;
    Device& device;
    Domains& domains;
    SessionTable& sessions;
    Groups& groups;
    EventFeed& events;
    Poller& poller;
    Rings& rings;
    EventLog& log;
  };
  /// What every welcome says.
  struct Identity {
    BootId boot;
    std::string command_endpoint;
  };

  SessionMaker(const Uses& uses, Identity identity) : uses_(uses), identity_(std::move(identity)) {}

  /// Lets the connection in; it stays the caller's if that fails.
  /// Errors: QuotaExceeded without a seat; PermissionDenied for a user of no domain; Unsupported
  ///         for memory that the engine cannot map; InvalidArgument for a device that is not there;
  ///         those of complete_shape(), Groups::enter and
  ///         EventFeed::attach; Unavailable, OutOfMemory; PeerGone.
  [[nodiscard]] Status admit(transport::AttachConnection& connection,
                             const Introduction& introduction);

 private:
  [[nodiscard]] Status check_device(const wire::Hello& hello) const;
  [[nodiscard]] Status check_room(DomainId domain, const transport::PeerIdentity& who,
                                  std::size_t seats) const;
  /// The domain may be new where domains are made as users come.
  [[nodiscard]] Result<Domains::Entry> domain_of(const transport::PeerIdentity& identity);
  [[nodiscard]] Result<core::Attach> application_of(const Introduction& introduction,
                                                    const transport::PeerIdentity& identity,
                                                    const Domains::Entry& domain) const;
  /// A session with pages, ring and bell of its own, and no engine yet.
  [[nodiscard]] Result<Peer> peer_of(const wire::Hello& hello, const core::Attach& attach,
                                     transport::PeerIdentity identity) const;
  /// Tells the engine that it is in, with all that is its own.
  [[nodiscard]] Status welcome(Peer& peer, const core::Attach& attach,
                               const core::AttachGrant& grant,
                               transport::AttachConnection& connection);
  [[nodiscard]] wire::Welcome welcome_of(const Peer& peer, const core::Attach& attach,
                                         ClassId class_id) const;
  [[nodiscard]] Status watch(const Peer& peer, int socket);
  void seat(Peer peer, const core::Attach& attach);

  const Uses uses_;
  const Identity identity_;
  bool told_unseen_ = false;  ///< that kvd does not see the processes of engines
};

}  // namespace kvd::daemon
