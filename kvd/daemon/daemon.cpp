#include "kvd/daemon/daemon.hpp"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <utility>

#include "ipc/vocabulary/hex.hpp"
#include "kvd/daemon/control_loop.hpp"
#include "kvd/daemon/service/metrics_mapping.hpp"
#include "kvd/daemon/sessions/session_key.hpp"

namespace kvd::daemon {

namespace {

Id128 random_id() {
  Id128 id;
  KVD_CHECK(::getrandom(id.bytes.data(), id.bytes.size(), 0) == 16, "the kernel has no randomness");
  return id;
}

admin::DaemonInfo info_of(const Config& config, const Device& device, BootId boot) {
  admin::DaemonInfo info;
  info.version = KVD_VERSION;
  info.boot_id = hex(boot.bytes);
  info.backend = device.kind();
  info.gpu = device.gpu(DeviceId(0));
  info.page_kinds = device.page_kinds();
  info.attach_endpoint = config.attach_socket;
  info.command_endpoint = config.command_socket;
  if (!config.metrics_address.empty()) {
    info.metrics_endpoint =
        "http://" + config.metrics_address + ":" + std::to_string(config.metrics_port) + "/metrics";
  }
  return info;
}

}  // namespace

SessionKey make_session_key() { return random_id(); }

Daemon::Daemon(const Clock& clock, Inbox inbox)
    : clock_(clock),
      started_(clock.now()),
      boot_(random_id()),
      inbox_(std::move(inbox)),
      log_(clock) {}

Daemon::~Daemon() = default;

Result<std::unique_ptr<Daemon>> Daemon::create(Config config, const Clock& clock,
                                               KeptDescriptors kept) {
  KVD_ASSIGN_OR_RETURN(Inbox inbox, Inbox::create());
  std::unique_ptr<Daemon> daemon(new Daemon(clock, std::move(inbox)));
  KVD_TRY(daemon->open(std::move(config), std::move(kept)));
  return daemon;
}

Status Daemon::open(Config config, KeptDescriptors kept) {
  const Shared shared{inbox_, log_, clock_};
  KVD_ASSIGN_OR_RETURN(auto parts, Parts::open(std::move(config), shared, boot_, std::move(kept)));
  loop_ = std::make_unique<ControlLoop>(std::move(parts), shared);
  KVD_TRY(loop_->open());
  config_ = loop_->in_force();
  info_ = info_of(config_, loop_->device(), boot_);
  ready_ = true;
  return {};
}

Status Daemon::run() {
  Status health = loop_->serve(stopping_);
  ready_ = false;
  if (health.ok()) {
    loop_->drain();
  } else {
    loop_->end_after_loss(health.error());
  }
  return health;
}

void Daemon::end_parts() { loop_->end_parts(); }

void Daemon::stop() {
  stopping_ = true;
  inbox_.post([] {});
}

void Daemon::reload(Config config) {
  inbox_.post([this, config = std::move(config)] { loop_->reload(config); });
}

template <class T>
Result<T> Daemon::ask(std::function<T()> question, Nanoseconds timeout) {
  if (!ready_) return make_error(ErrorCode::kUnavailable, "kvd is draining: ask again later");
  const auto answer = std::make_shared<std::promise<T>>();
  std::future<T> future = answer->get_future();
  inbox_.post([answer, question = std::move(question)] { answer->set_value(question()); });
  if (future.wait_for(timeout) != std::future_status::ready) {
    return make_error(ErrorCode::kDeadlineExceeded,
                      "the control thread did not answer in time: ask again");
  }
  return future.get();
}

Result<core::ControllerStatus> Daemon::status(Nanoseconds timeout) {
  return ask<core::ControllerStatus>([this] { return loop_->status(); }, timeout);
}

Result<ShellCounters> Daemon::shell(Nanoseconds timeout) {
  return ask<ShellCounters>([this] { return loop_->shell(); }, timeout);
}

Result<admin::Snapshot> Daemon::snapshot(Nanoseconds timeout) {
  using Taken = std::pair<admin::Snapshot, ShellCounters>;
  const auto take = [this] {
    Taken now;
    now.first.status = loop_->status();
    now.first.config = effective_values(loop_->in_force());
    now.first.origins = loop_->origins();
    now.first.quotas = loop_->quotas();
    now.second = loop_->shell();
    return now;
  };
  KVD_ASSIGN_OR_RETURN(Taken taken, ask<Taken>(take, timeout));
  auto& [snapshot, shell] = taken;
  snapshot.now = clock_.now();
  snapshot.read = config_.admin_process.read;
  snapshot.uid = ::geteuid();
  snapshot.info = info();
  snapshot.info.live_settings = static_cast<std::uint64_t>(
      std::count_if(snapshot.origins.begin(), snapshot.origins.end(),
                    [](const auto& one) { return one.configured.has_value(); }));
  shell.refused_tokens = refused_tokens_;
  snapshot.happenings = log_.all();
  collect(snapshot.status, shell, snapshot.info, snapshot.samples);
  return std::move(snapshot);
}

Result<core::Tuning> Daemon::change(const admin::link::Change& change,
                                    std::vector<admin::link::Assignment> assignments,
                                    Nanoseconds timeout) {
  const auto make = [this, change, assignments = std::move(assignments)] {
    auto changed = std::make_shared<Result<core::Tuning>>(loop_->change(change, assignments));
    drains_ = loop_->drains();
    return changed;
  };
  KVD_ASSIGN_OR_RETURN(const auto made, ask<std::shared_ptr<Result<core::Tuning>>>(make, timeout));
  return std::move(*made);
}

void Daemon::refuse_token() {
  constexpr Nanoseconds kBetween = std::chrono::minutes(1);
  const std::uint64_t all = ++refused_tokens_;
  const TimePoint now = clock_.now();
  if (now < next_refusal_told_) return;
  next_refusal_told_ = now + kBetween;
  warn("a wrong admin token was refused over REST, " + std::to_string(all) +
       " so far: the right one is the text of admin.token");
}

Status Daemon::clear_cache(Nanoseconds timeout) {
  const auto clear = [this] { return loop_->clear_cache(); };
  KVD_ASSIGN_OR_RETURN(const auto done, ask<std::shared_future<Status>>(clear, timeout));
  if (done.wait_for(timeout) == std::future_status::ready) return done.get();
  return make_error(ErrorCode::kDeadlineExceeded,
                    "the cache is empty, and the disk does not answer: where kvd ends before it "
                    "does, a later one may find there what was cleared");
}

std::string Daemon::why_not_ready() const {
  if (!ready_ || drains_ || stopping_) return "starting or draining; try again";
  const std::string unreachable = loop_->unreachable();
  return unreachable.empty() ? "" : "no engine can attach: " + unreachable;
}

admin::DaemonInfo Daemon::info() const {
  admin::DaemonInfo info = info_;
  info.uptime = clock_.now() - started_;
  return info;
}

}  // namespace kvd::daemon
