#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "kvd/admin/admin_backend.hpp"

namespace kvd::admin {

/// A daemon that keeps its tuning and answers at once, or fails as told. Thread-safe.
class FakeBackend final : public AdminBackend {
 public:
  Result<core::ControllerStatus> status(Nanoseconds) override {
    const std::lock_guard lock(mutex_);
    if (failure_) return *failure_;
    return status_;
  }
  Status retune(core::Tuning tuning, Nanoseconds) override {
    const std::lock_guard lock(mutex_);
    if (failure_) return *failure_;
    status_.tuning = std::move(tuning);
    ++retunes_;
    return {};
  }
  Result<std::string> config_json(Nanoseconds) override {
    return std::string("{\"hbm\":\"256MiB\"}");
  }
  bool ready() override {
    const std::lock_guard lock(mutex_);
    return ready_;
  }
  DaemonInfo info() override {
    return {.version = "0.1.0",
            .boot_id = std::string(32, 'a'),
            .uptime = std::chrono::seconds(90),
            .backend = "host",
            .page_kinds = {"thp", "4k"},
            .attach_endpoint = "/run/kvd/attach.sock",
            .command_endpoint = "ipc:///run/kvd/command.sock",
            .metrics_endpoint = "127.0.0.1:9470"};
  }

  std::vector<Happening> happenings() override {
    Journal journal;
    journal.add(TimePoint(std::chrono::seconds(60)), "warning", EngineId(3), "engine 'a' died");
    return journal.all();
  }
  TimePoint now() override { return TimePoint(std::chrono::seconds(90)); }

  void set_status(core::ControllerStatus status) {
    const std::lock_guard lock(mutex_);
    status_ = std::move(status);
  }
  void fail(std::optional<Error> failure) {
    const std::lock_guard lock(mutex_);
    failure_ = std::move(failure);
  }
  void set_ready(bool ready) {
    const std::lock_guard lock(mutex_);
    ready_ = ready;
  }
  [[nodiscard]] core::Tuning tuning() const {
    const std::lock_guard lock(mutex_);
    return status_.tuning;
  }
  [[nodiscard]] int retunes() const {
    const std::lock_guard lock(mutex_);
    return retunes_;
  }

 private:
  mutable std::mutex mutex_;
  core::ControllerStatus status_;
  std::optional<Error> failure_;
  bool ready_ = true;
  int retunes_ = 0;
};

}  // namespace kvd::admin
