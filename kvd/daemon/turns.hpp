#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <optional>

#include "ipc/transport/command_server.hpp"
#include "ipc/vocabulary/ids.hpp"

namespace kvd::daemon {

/// Connections whose next command waits for its domain's turn: domains are served round robin, one
/// command each, so that a step of one domain waits for one command of each other and not for all
/// that their engines have sent. The commands stay with the transport, one of a connection.
/// Source: kvd design. Owner: control thread.
/// Cost:   O(log domains) a call.
class Turns {
 public:
  void add(DomainId domain, transport::PeerId peer) { waiting_[domain].push_back(peer); }
  [[nodiscard]] bool empty() const { return waiting_.empty(); }
  [[nodiscard]] std::size_t domains() const { return waiting_.size(); }
  /// The peer that has waited longest in the domain whose turn it is.
  [[nodiscard]] std::optional<transport::PeerId> next();

 private:
  std::map<DomainId, std::deque<transport::PeerId>> waiting_;  ///< no empty ones
  DomainId served_;                                            ///< last
};

}  // namespace kvd::daemon
