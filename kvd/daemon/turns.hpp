#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <map>
#include <optional>

#include "ipc/transport/command_server.hpp"
#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/units.hpp"

namespace kvd::daemon {

/// Connections whose next command waits for its domain's turn. The domain whose commands have taken
/// the least time is next, so that a step waits for the command in hand and not for all that others
/// have sent, however long theirs take. A domain that was silent starts level with the others: it
/// has saved up nothing. The commands stay with the transport, one of a connection.
/// Source: start-time fair queueing (Goyal, Vin and Cheng, 1996), with equal weights.
/// Owner:  control thread.
/// Cost:   O(domains that were served lately).
class Turns {
 public:
  void add(DomainId domain, transport::PeerId peer);
  [[nodiscard]] bool empty() const { return waiting_ == 0; }
  /// The peer that has waited longest in the domain whose turn it is.
  [[nodiscard]] std::optional<transport::PeerId> next();
  /// Tells how long the command took that was served last.
  void took(Nanoseconds time) { took(served_, time); }

  /// What the domain's commands have taken; these two are for commands that wait elsewhere.
  [[nodiscard]] Nanoseconds taken(DomainId domain) const;
  void took(DomainId domain, Nanoseconds time);

 private:
  void forget_idle();

  struct Line {
    std::deque<transport::PeerId> peers;
    Nanoseconds taken{0};
  };
  std::map<DomainId, Line> lines_;
  std::size_t waiting_ = 0;
  Nanoseconds level_{0};  ///< what the domain had taken that was served last
  DomainId served_;
};

}  // namespace kvd::daemon
