#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "ipc/transport/command_server.hpp"
#include "ipc/vocabulary/ids.hpp"
#include "ipc/wire/messages.hpp"

namespace kvd::daemon {

/// Commands that came over ZeroMQ and wait for their domain's turn: domains are served round robin,
/// one command each, so that a step of one domain waits for one command of each other and not for
/// all that their engines have sent.
/// Source: kvd design. Owner: control thread.
/// Cost:   O(log domains + log sessions) a call, and a copy of the frame.
class Turns {
 public:
  /// What a session may have sent without waiting for answers.
  static constexpr std::size_t kMostOfASession = wire::kMostUnanswered;

  struct Held {
    transport::PeerId peer;
    std::vector<std::byte> frame;
    uid_t uid = 0;
    pid_t pid = 0;
    EngineId session;

    [[nodiscard]] transport::Incoming incoming() const { return {peer, frame, uid, pid}; }
  };

  /// False when the session has sent too many: it does not read its answers, or floods.
  [[nodiscard]] bool add(DomainId domain, EngineId session, const transport::Incoming& incoming);
  [[nodiscard]] bool empty() const { return waiting_.empty(); }
  [[nodiscard]] std::size_t domains() const { return waiting_.size(); }
  /// The oldest command of the domain whose turn it is.
  [[nodiscard]] std::optional<Held> next();

 private:
  std::map<DomainId, std::deque<Held>> waiting_;  ///< no empty ones
  std::map<EngineId, std::size_t> of_session_;
  DomainId served_;  ///< last
};

}  // namespace kvd::daemon
