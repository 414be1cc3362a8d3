#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "ipc/vocabulary/standard_streams.hpp"
#include "kvd/daemon/admin_child.hpp"
#include "kvd/daemon/admin_desk.hpp"
#include "kvd/daemon/base/descriptor_store.hpp"
#include "kvd/daemon/base/log.hpp"
#include "kvd/daemon/config/config.hpp"
#include "kvd/daemon/config/config_values.hpp"
#include "kvd/daemon/config/memory_check.hpp"
#include "kvd/daemon/config/needs.hpp"
#include "kvd/daemon/config/service_manager.hpp"
#include "kvd/daemon/daemon.hpp"
#include "kvd/daemon/machine/admin_token.hpp"
#include "kvd/daemon/machine/capabilities.hpp"
#include "kvd/daemon/machine/places.hpp"
#include "kvd/daemon/signals.hpp"
#include "kvd/daemon/workers/remotes.hpp"

extern char** environ;

namespace kvd::daemon {
namespace {

/// Exit status: 1 could not start, 2 wrong configuration. Two more ask for a restart: one because
/// only a new process can have the device again, one because a later start can succeed. kvd-holder
/// and the unit start the latter again without end. Source: sysexits.h, EX_TEMPFAIL.
constexpr int kDeviceLost = 3;
constexpr int kNotYet = 75;
/// The end of the process waits this long for its log: longer than a log that is read needs.
constexpr Nanoseconds kLogPatience = std::chrono::milliseconds(500);

/// A clean stop waits this long for the work that remains after engines are told: longer than disks
/// need that answer at all.
constexpr std::chrono::milliseconds kEndPatience{1500};

/// What the standard library throws where the process's limits are too tight.
int cannot_start(const char* what, const char* remedy) {
  std::fprintf(stderr, "kvd: cannot start: %s: %s\n", what, remedy);
  return 1;
}

/// A umask that takes rights of kvd's own user away would keep it from its own files.
void keep_own_rights() { ::umask(::umask(0) & 077); }

/// The reason is the last line, after what the log still holds.
int fail(const Error& error) {
  flush_log(kLogPatience);
  std::fprintf(stderr, "kvd: %s\n", error.message.c_str());
  if (error.code == ErrorCode::kWouldBlock) return kNotYet;
  return error.code == ErrorCode::kInvalidArgument ? 2 : 1;
}

void reload(Daemon& daemon, int argc, char** argv) {
  auto invocation = parse_invocation(argc, argv, environ);
  const auto found = invocation.ok() ? faults(invocation->config) : std::vector<std::string>{};
  if (!invocation.ok() || !found.empty()) {
    log_error("the configuration is not reloaded: " +
              (invocation.ok() ? found.front() : invocation.error().message));
    return;
  }
  daemon.reload(std::move(invocation->config));
}

/// Every fd of a large pool's slabs, and a few for each session.
Status take_descriptors(const Config& config) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return {};
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  return check_descriptors(config, limit.rlim_max);
}

/// The process that serves REST and metrics; null where both are switched off.
Result<std::unique_ptr<AdminChild>> start_admin(const Config& config, Daemon& daemon,
                                                const Clock& clock) {
  if (config.admin_address.empty() && config.metrics_address.empty()) {
    return std::unique_ptr<AdminChild>();
  }
  KVD_ASSIGN_OR_RETURN(std::string token, load_or_make_token(config.token_file));
  return AdminChild::start(
      {.program = config.admin_process.program.empty() ? default_admin_program()
                                                       : config.admin_process.program,
       .user = config.admin_process.user,
       .admin_address = config.admin_address,
       .admin_port = config.admin_port,
       .metrics_address = config.metrics_address,
       .metrics_port = config.metrics_port},
      AdminDesk(daemon, clock, std::move(token), config.token_file),
      [&daemon](const std::string& text) { daemon.warn(text); });
}

/// Ends the process with this status, unless it has ended by then.
void end_soon(int status) {
  std::thread([status] {
    std::this_thread::sleep_for(kEndPatience);
    ::_exit(status);
  }).detach();
}

int serve(const Config& config, KeptDescriptors kept, Signals& signals, int argc, char** argv) {
  ::prctl(PR_SET_DUMPABLE, 0);
  const bool host = config.backend == BackendChoice::kHost;
  if (const Status capabilities =
          keep_capabilities(kKeptCapabilities, host ? Programs::kNone : Programs::kHelpers);
      !capabilities.ok()) {
    return fail(capabilities.error());
  }
  if (const Status files = take_descriptors(config); !files.ok()) return fail(files.error());
  const SteadyClock clock;
  if (const Status places = check_places(config, clock); !places.ok()) return fail(places.error());
  auto daemon = Daemon::create(config, clock, std::move(kept));
  if (!daemon.ok()) return fail(daemon.error());

  auto admin = start_admin(config, **daemon, clock);
  if (!admin.ok()) return fail(admin.error());
  signals.serving(**daemon, [&] { reload(**daemon, argc, argv); });
  log_info("ready: engines attach at " + config.attach_socket);
  notify_service_manager("READY=1\nSTATUS=engines attach at " + config.attach_socket);
  const Status end = (*daemon)->run();
  const int status = end.ok() ? 0 : kDeviceLost;

  end_soon(status);
  admin->reset();
  (*daemon)->end_parts();
  log_info("stopped");
  flush_log(kLogPatience);
  // The signal thread still refers to the daemon; the process ends with it in place.
  std::fflush(nullptr);
  ::_exit(status);
}

/// Tells what a configuration takes; it may be meant for another machine.
void tell_needs(const Config& config) {
  std::printf(
      "kvd: the configuration is valid; it takes %s of memory, %s of it beside the pools, "
      "and %llu file descriptors\n",
      human_size(memory_at_most(config)).c_str(), human_size(memory_beside(config)).c_str(),
      static_cast<unsigned long long>(descriptors_needed(config)));
  const auto room = memory_room(config.reserve);
  const Status fits = room.ok() ? check_memory(host_pools(config), memory_beside(config), *room,
                                               "pool.hbm + pool.dram")
                                : Status(room.error());
  const auto secrets = read_remote_secrets(config);
  for (const Status& here : {fits, secrets.ok() ? Status() : Status(secrets.error())}) {
    if (here.ok()) continue;
    std::fprintf(stderr, "kvd: not on this machine: %s\n", here.error().message.c_str());
  }
}

int main(int argc, char** argv) {
  open_standard_descriptors();
  keep_own_rights();
  Signals& signals = Signals::take();
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error, not the end
  KeptDescriptors kept = take_kept_descriptors();
  auto invocation = parse_invocation(argc, argv, environ);
  if (!invocation.ok()) return fail(invocation.error());
  Config& config = invocation->config;
  using Action = Invocation::Action;
  if (invocation->action != Action::kRun && invocation->action != Action::kCheck) {
    std::fputs(invocation->text.c_str(), stdout);
    return status_after_output("kvd", 0);
  }
  const std::vector<std::string> found = faults(config);
  for (const std::string& fault : found) std::fprintf(stderr, "kvd: %s\n", fault.c_str());
  if (!found.empty()) return 2;
  if (invocation->action == Action::kCheck) {
    tell_needs(config);
    return status_after_output("kvd", 0);
  }
  set_log_level(config.log_level);
  resolve_paths(config, environ);
  std::signal(SIGPIPE, SIG_IGN);  // what was only printed ends with its reader
  signals.starting(config);
  return serve(config, std::move(kept), signals, argc, argv);
}

}  // namespace
}  // namespace kvd::daemon

int main(int argc, char** argv) {
  int status = 1;
  try {
    status = kvd::daemon::main(argc, argv);
  } catch (const std::system_error& error) {
    status = kvd::daemon::cannot_start(
        error.what(), "raise the limit of threads (ulimit -u, TasksMax) or memory");
  } catch (const std::bad_alloc&) {
    status = kvd::daemon::cannot_start("no memory left", "raise ulimit -v or -d, or MemoryMax");
  }
  kvd::daemon::flush_log(kvd::daemon::kLogPatience);
  return status;
}
