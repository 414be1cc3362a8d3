#pragma once

#include <mutex>
#include <string>

#include "ipc/transport/command_server.hpp"
#include "kvd/daemon/base/event_log.hpp"
#include "kvd/daemon/config/config.hpp"
#include "kvd/daemon/service/acceptor.hpp"

namespace kvd::daemon {

/// Looks once a second whether engines still find the two sockets. Whoever removes their files, or
/// the folder (a log-out does, with /run/user/N), keeps new engines out, while those that are
/// attached go on and notice nothing. kvd listens anew then, in a new folder where it has to be.
/// Source: kvd.
/// Owner:  control thread, fault() aside. What it is given must outlive it.
/// Errors: none; what cannot be had back is tried again at each look, and told once.
class SocketWatch {
 public:
  struct Uses {
    const Config& config;
    Acceptor& acceptor;
    transport::CommandServer& server;
    EventLog& log;
    const Clock& clock;
  };

  explicit SocketWatch(const Uses& uses) : uses_(uses) {}

  void on_tick();
  /// Why no engine finds kvd; empty: they do. Any thread.
  [[nodiscard]] std::string fault() const;

 private:
  [[nodiscard]] Result<bool> restore();

  const Uses uses_;
  TimePoint next_{0};
  mutable std::mutex mutex_;
  std::string fault_;  // guarded by mutex_
};

}  // namespace kvd::daemon
