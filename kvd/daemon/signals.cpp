#include "kvd/daemon/signals.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <thread>
#include <utility>

#include "ipc/transport/unix_socket.hpp"
#include "kvd/daemon/base/log.hpp"
#include "kvd/daemon/config/service_manager.hpp"
#include "kvd/daemon/machine/capabilities.hpp"

namespace kvd::daemon {

Signals& Signals::take() {
  static Signals& signals = *new Signals();
  return signals;
}

Signals::Signals() {
  sigemptyset(&signals_);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals_, signal);
  ::pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  std::thread([this] { run(); }).detach();
}

void Signals::starting(const Config& config) {
  const std::lock_guard lock(mutex_);
  attach_socket_ = config.attach_socket;
  command_socket_ = config.command_socket;
}

void Signals::serving(Daemon& daemon, std::function<void()> reload) {
  const std::lock_guard lock(mutex_);
  daemon_ = &daemon;
  reload_ = std::move(reload);
  if (std::exchange(reload_wanted_, false)) start_reload();
}

// A configuration that does not come (a pipe, a file system that is gone) keeps no other signal.
void Signals::start_reload() {
  if (std::exchange(reloading_, true))
    return log_warning("SIGHUP: the configuration is still read");
  std::thread([this] {
    reload_();
    const std::lock_guard lock(mutex_);
    reloading_ = false;
  }).detach();
}

// This thread exists before kvd gives up the privileges that it does not need, which each thread
// does for itself.
void Signals::run() {
  (void)keep_capabilities({}, Programs::kNone);
  for (;;) {
    int signal = 0;
    if (::sigwait(&signals_, &signal) == 0) on_signal(signal);
  }
}

void Signals::on_signal(int signal) {
  const std::lock_guard lock(mutex_);
  if (signal == SIGHUP) {
    reload_wanted_ = daemon_ == nullptr;
    if (!reload_wanted_) start_reload();
    return;
  }
  if (daemon_ == nullptr) end_start(signal);
  if (std::exchange(draining_, true)) ::_exit(128 + signal);
  notify_service_manager("STOPPING=1\nSTATUS=draining");
  daemon_->stop();
}

// Nobody has been served, and the memory ends with the process: there is nothing to wait for.
void Signals::end_start(int signal) const {
  if (attach_socket_.empty()) ::_exit(128 + signal);
  notify_service_manager("STOPPING=1\nSTATUS=stopped while it started");
  log_info("stopped before it was ready");
  transport::UnixListener::remove_own(attach_socket_, SOCK_SEQPACKET);
  transport::UnixListener::remove_own(command_socket_, SOCK_STREAM);
  (void)flush_log(std::chrono::milliseconds(100));
  ::_exit(0);
}

}  // namespace kvd::daemon
