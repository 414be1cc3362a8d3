#pragma once

#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <vector>

#include "ipc/vocabulary/clock.hpp"
#include "kvd/admin/link/messages.hpp"
#include "kvd/core/door/status.hpp"
#include "kvd/daemon/machine/realtime.hpp"
#include "kvd/daemon/parts.hpp"
#include "kvd/daemon/service/shell_counters.hpp"
#include "kvd/daemon/service/socket_watch.hpp"

namespace kvd::daemon {

/// The control thread's loop: waits for descriptors, gives each part its turn, and changes what a
/// person may change. Everything that the daemon keeps is touched here, by one thread, and nowhere
/// else; other threads get in through the inbox.
/// Source: kvd/DESIGN.md "Threads".
/// Owner:  the thread that calls serve(), which may be another one than the one that made it.
class ControlLoop {
 public:
  /// What is shared must outlive it.
  ControlLoop(std::unique_ptr<Parts> parts, const Shared& shared)
      : parts_(std::move(parts)),
        inbox_(shared.inbox),
        log_(shared.log),
        clock_(shared.clock),
        sockets_({parts_->config, parts_->acceptor, *parts_->server, shared.log, shared.clock}),
        configured_(in_force()) {}

  /// Engines may attach when it returns. Errors: Unavailable when the kernel watches no more.
  [[nodiscard]] Status open();
  /// Serves until `stopping`, and after that for drain.to_remote, until what is cached is written.
  /// Errors: DeviceError when the device is lost.
  [[nodiscard]] Status serve(const std::atomic<bool>& stopping);
  /// After serve(): lets copies end and ends all sessions.
  void drain();
  /// After serve() with a lost device: no copy ends any more and no fence is written.
  void end_after_loss(const Error& error);
  /// Call it after both: no worker writes any more, and what is on disk gets its index.
  void end_parts();

  [[nodiscard]] core::ControllerStatus status() const;
  /// What the Controller does not know.
  [[nodiscard]] ShellCounters shell() const;
  /// The configuration with everything that was changed since.
  [[nodiscard]] Config in_force() const;
  /// Tells who set each key, and what was changed since.
  [[nodiscard]] std::vector<admin::ConfigOrigin> origins() const {
    return config_origins(configured_, in_force());
  }
  [[nodiscard]] std::vector<admin::DomainQuota> quotas() const;
  /// The whole node is out of service.
  [[nodiscard]] bool drains() const { return parts_->events.drains(); }
  /// As SocketWatch::fault().
  [[nodiscard]] std::string unreachable() const { return sockets_.fault(); }
  [[nodiscard]] const Device& device() const { return *parts_->device; }

  /// Frees all of the prefix cache that no request runs on. Ends once the disk, if there is one,
  /// has it written down.
  [[nodiscard]] std::shared_future<Status> clear_cache();
  /// Reports each difference. Returns the whole tuning after a change of it, of the quotas, or of
  /// what is in service. Errors: those of admin::link::changed() and drains_of().
  [[nodiscard]] Result<core::Tuning> change(
      const admin::link::Change& change, const std::vector<admin::link::Assignment>& assignments);
  /// Takes new SLOs, quotas and log level, and nothing else.
  void reload(const Config& config);

 private:
  /// It was told to stop, and nothing is left to be written.
  [[nodiscard]] bool ends();
  void dispatch(const Poller::Ready& ready);
  void tick();
  void run_tasks();
  void end_sessions();
  [[nodiscard]] Result<core::Tuning> make_change(
      const admin::link::Change& change, const std::vector<admin::link::Assignment>& assignments);
  void tell_differences(const Config& before, const std::string& by);
  Status change_quotas(const admin::link::Change& change,
                       const std::vector<admin::link::Assignment>& assignments);
  /// Takes new quotas, tier by tier. Where the pool has no room for them the old ones stay.
  void take_quotas(const Config& config);

  std::unique_ptr<Parts> parts_;
  Inbox& inbox_;
  EventLog& log_;
  const Clock& clock_;
  SocketWatch sockets_;
  std::optional<TimePoint> end_at_;         ///< none: it was not told to stop yet
  std::optional<RealtimeThread> realtime_;  ///< while it serves
  Config configured_;                       ///< what the next start has of it, as far as is known
};

}  // namespace kvd::daemon
