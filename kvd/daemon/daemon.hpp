#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ipc/vocabulary/clock.hpp"
#include "ipc/vocabulary/ids.hpp"
#include "kvd/admin/journal.hpp"
#include "kvd/admin/link/messages.hpp"
#include "kvd/admin/link/snapshot.hpp"
#include "kvd/core/door/status.hpp"
#include "kvd/core/door/tuning.hpp"
#include "kvd/daemon/base/event_log.hpp"
#include "kvd/daemon/base/inbox.hpp"
#include "kvd/daemon/config/config.hpp"
#include "kvd/daemon/memory/kept_memory.hpp"
#include "kvd/daemon/service/shell_counters.hpp"

namespace kvd::daemon {

class ControlLoop;

/// The daemon as other threads see it: starts the control loop, stops it, and asks it through the
/// inbox. All state is the loop's, which runs on the thread that calls run().
/// Source: kvd/DESIGN.md "A functional core in a thin shell", "Threads".
/// Owner:  thread-safe, but for create(), run() and the destructor.
class Daemon {
 public:
  /// Obtains the memory and opens the sockets; engines may attach when it returns.
  /// Errors: OutOfMemory with the remedy, Unavailable for a path in use, InvalidArgument.
  /// `kept`: as take_kept_descriptors().
  static Result<std::unique_ptr<Daemon>> create(Config config, const Clock& clock,
                                                KeptDescriptors kept = {});
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  /// Serves until stop(); then lets copies end, tells every client, and returns within 3 s.
  /// Errors: DeviceError at once when the device is lost; every session has been poisoned then, and
  ///         only a new process can have the device again.
  [[nodiscard]] Status run();
  /// After run(), once: what outlives the process is written down, and threads that write end. The
  /// memory stays where it is. Only stop() and reload() may be called afterwards.
  void end_parts();
  /// Async-signal-safe, too.
  void stop();
  /// New SLOs, quotas and log level (SIGHUP).
  void reload(Config config);

  // For kvd-admin and tests. Errors: DeadlineExceeded when the control thread does not answer in
  // time, Unavailable while the daemon drains.
  [[nodiscard]] Result<core::ControllerStatus> status(Nanoseconds timeout);
  /// Everything there is to show.
  [[nodiscard]] Result<admin::Snapshot> snapshot(Nanoseconds timeout);
  /// Makes the change on the control thread, so that no other change comes in between; in force at
  /// the next step. Answers the whole new tuning. Errors besides: of admin::link::changed().
  [[nodiscard]] Result<core::Tuning> change(const admin::link::Change& change,
                                            std::vector<admin::link::Assignment> assignments,
                                            Nanoseconds timeout);
  /// Empties the prefix cache, but for blocks that requests run on.
  [[nodiscard]] Status clear_cache(Nanoseconds timeout);
  /// What the Controller does not know.
  [[nodiscard]] Result<ShellCounters> shell(Nanoseconds timeout);
  /// Why engines cannot attach now; empty: they can.
  [[nodiscard]] std::string why_not_ready() const;
  [[nodiscard]] admin::DaemonInfo info() const;
  /// The latest happenings, oldest first.
  [[nodiscard]] std::vector<admin::Happening> happenings() const { return log_.all(); }
  /// Something a person should know of, to the log and the events.
  void warn(const std::string& text) { log_.warn(EngineId(), text); }

  /// A token was sent that is not the daemon's. Told once a minute at most; called by one thread.
  void refuse_token();

  /// The configuration that it was started with, completed by what the backend chose.
  [[nodiscard]] const Config& config() const { return config_; }

 private:
  Daemon(const Clock& clock, Inbox inbox);
  Status open(Config config, KeptDescriptors kept);
  template <class T>
  Result<T> ask(std::function<T()> question, Nanoseconds timeout);

  // Never changed once engines may attach.
  const Clock& clock_;
  const TimePoint started_;
  const BootId boot_;
  Config config_;
  admin::DaemonInfo info_;  ///< uptime aside

  // Any thread's.
  Inbox inbox_;
  EventLog log_;
  std::atomic<bool> ready_ = false;
  std::atomic<bool> stopping_ = false;
  std::atomic<bool> drains_ = false;  ///< the whole node is out of service

  std::atomic<std::uint64_t> refused_tokens_ = 0;
  TimePoint next_refusal_told_{0};  ///< the thread's that refuses

  // The control thread's.
  std::unique_ptr<ControlLoop> loop_;
};

}  // namespace kvd::daemon
