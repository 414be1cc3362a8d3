#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "ipc/vocabulary/clock.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/unique_fd.hpp"
#include "kvd/admin/link/channel.hpp"
#include "kvd/daemon/admin_desk.hpp"

namespace kvd::daemon {

/// Runs kvd-admin, the process that serves REST and metrics, and answers its questions. A process
/// that ends is started again, after a tenth of a second at first, up to 5 s when it keeps ending.
/// Source: kvd design: what reads strangers' bytes holds nothing of worth and may die.
/// Owner:  made and destroyed by one thread; a thread of its own waits on the process.
class AdminChild {
 public:
  struct Config {
    std::string program;  ///< path of kvd-admin
    std::string user;     ///< whom it becomes where kvd may change users; "" : kvd's own
    std::string admin_address;
    std::uint16_t admin_port = 0;
    std::string metrics_address;
    std::uint16_t metrics_port = 0;
  };
  /// Called for each unwanted end, on the child's thread.
  using Tell = std::function<void(const std::string&)>;

  /// Returns when the process listens. Errors: its own (a port that is taken), InvalidArgument for
  /// an unknown user, Unavailable where the program cannot be run.
  [[nodiscard]] static Result<std::unique_ptr<AdminChild>> start(const Config& config,
                                                                 AdminDesk desk, Tell tell);
  /// Ends the process.
  ~AdminChild();
  AdminChild(const AdminChild&) = delete;
  AdminChild& operator=(const AdminChild&) = delete;

 private:
  AdminChild(std::string program, const admin::link::Begin& begin, AdminDesk desk, Tell tell,
             UniqueFd stop);
  Status spawn(Nanoseconds patience);
  Status greet(Nanoseconds patience);
  void run();
  /// Serves until the link breaks or the daemon ends.
  void serve();
  /// Waits at most this long, and returns whether the end is wanted.
  [[nodiscard]] bool stopped(Nanoseconds timeout) const;
  /// Makes sure that the process is gone. Returns how it ended: "exit status 1", "signal 6".
  std::string reap();

  const std::string program_;
  const admin::link::Begin begin_;
  AdminDesk desk_;
  const Tell tell_;
  const UniqueFd stop_;  ///< an eventfd, readable when the end is wanted
  const SteadyClock clock_;
  pid_t pid_ = -1;
  std::optional<admin::link::Channel> channel_;
  std::thread thread_;
};

/// The kvd-admin that belongs to this kvd: the one beside its executable.
[[nodiscard]] std::string default_admin_program();

}  // namespace kvd::daemon
