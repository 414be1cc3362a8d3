#pragma once

#include <deque>
#include <map>
#include <optional>

#include "ipc/transport/command_server.hpp"
#include "ipc/vocabulary/fair_turns.hpp"
#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/units.hpp"

namespace kvd::daemon {

/// Connections whose next command waits for its domain's turn. The domain whose commands have taken
/// the least time is next, so that a step waits for the command in hand and not for all that others
/// have sent, however long theirs take. The commands stay with the transport, one of a connection.
/// Source: kvd design. Owner: control thread.
/// Cost:   O(domains that were served lately).
class Turns {
 public:
  void add(DomainId domain, transport::PeerId peer) { waiting_[domain].push_back(peer); }
  [[nodiscard]] bool empty() const { return waiting_.empty(); }
  /// The peer that has waited longest in the domain whose turn it is.
  [[nodiscard]] std::optional<transport::PeerId> next();
  /// Tells how long the command took that was served last.
  void took(Nanoseconds time) { took(served_, time); }

  /// What the domain's commands have taken; these two are for commands that wait elsewhere.
  [[nodiscard]] Nanoseconds taken(DomainId domain) const { return fair_.taken(domain); }
  void took(DomainId domain, Nanoseconds time) { fair_.took(domain, time); }

 private:
  std::map<DomainId, std::deque<transport::PeerId>> waiting_;  ///< no empty ones
  FairTurns<DomainId, Nanoseconds> fair_;
  DomainId served_;  ///< last
};

}  // namespace kvd::daemon
