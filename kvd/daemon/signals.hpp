#pragma once

#include <csignal>
#include <functional>
#include <mutex>
#include <string>

#include "kvd/daemon/daemon.hpp"

namespace kvd::daemon {

/// What SIGTERM, SIGINT and SIGHUP do. Until kvd serves, the first two end it at once, whatever it
/// waits for, and take its sockets along; then they drain it, and a second one ends it at once.
/// SIGHUP reloads, once it serves.
/// Source: kvd/DESIGN.md "Threads".
/// Owner:  thread-safe. It has a thread that waits for signals until the process ends, so it is
///         never destroyed.
class Signals {
 public:
  /// Blocks the signals in this thread and in all it starts: to be called before there is another.
  [[nodiscard]] static Signals& take();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  /// What is wanted is known: an end before it serves is one in order now.
  void starting(const Config& config);
  /// `reload` is called on a thread of its own, never twice at a time.
  void serving(Daemon& daemon, std::function<void()> reload);

 private:
  Signals();
  void run();
  void on_signal(int signal);
  void start_reload();
  [[noreturn]] void end_start(int signal) const;

  sigset_t signals_{};
  std::mutex mutex_;  // guards what follows
  std::string attach_socket_, command_socket_;
  Daemon* daemon_ = nullptr;  ///< null: it does not serve yet
  std::function<void()> reload_;
  bool reload_wanted_ = false;  ///< before it served
  bool reloading_ = false;
  bool draining_ = false;
};

}  // namespace kvd::daemon
