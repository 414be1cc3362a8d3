#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "kvd/admin/admin_backend.hpp"
#include "kvd/admin/link/drain.hpp"
#include "kvd/admin/link/tuning_change.hpp"

namespace kvd::admin {

/// A daemon that keeps its tuning and answers at once, or fails when told to. Thread-safe.
class FakeBackend final : public AdminBackend {
 public:
  static constexpr const char* kToken = "0123456789abcdef";

  Result<std::shared_ptr<const Snapshot>> snapshot() override {
    const std::lock_guard lock(mutex_);
    if (failure_) return *failure_;
    return std::make_shared<const Snapshot>(snapshot_);
  }
  Result<link::Standing> standing(std::string_view token) override {
    const std::lock_guard lock(mutex_);
    return link::Standing{token == kToken ? 1u : 0u,
                          link::to_text<252>(ready_ ? "" : "the sockets are gone")};
  }
  Result<core::Tuning> change(std::string_view, const TuningPatch& patch) override {
    const std::lock_guard lock(mutex_);
    if (failure_) return *failure_;
    link::Change change;
    change.part = patch.part;
    change.conditional = patch.if_match ? 1 : 0;
    for (const std::uint64_t tag : patch.if_match.value_or(std::vector<std::uint64_t>())) {
      change.tags[change.tag_count++] = tag;
    }
    if (patch.part == link::Part::kQuotas) {
      const pool::SlabCapacity capacity{2 * kMiB, 8};
      auto quotas =
          link::changed(snapshot_.quotas, change, patch.assignments, {capacity, capacity});
      if (!quotas.ok()) return quotas.error();
      snapshot_.quotas = *std::move(quotas);
      ++changes_;
      return snapshot_.status.tuning;
    }
    if (patch.part == link::Part::kDrain) {
      const auto drains = link::drains_of(snapshot_.status, change, patch.assignments);
      if (!drains.ok()) return drains.error();
      for (const core::Drain& drain : *drains) drained(drain);
      ++changes_;
      return snapshot_.status.tuning;
    }
    auto tuning = link::changed(snapshot_.status.tuning, change, patch.assignments);
    if (!tuning.ok()) return tuning;
    snapshot_.status.tuning = *tuning;
    ++changes_;
    return tuning;
  }

  Status clear_cache(std::string_view) override {
    const std::lock_guard lock(mutex_);
    if (failure_) return *failure_;
    for (Bytes& bytes : snapshot_.status.cached) bytes = Bytes(0);
    ++changes_;
    return {};
  }

  /// What will be shown.
  template <class Edit>
  void edit(Edit edit) {
    const std::lock_guard lock(mutex_);
    edit(snapshot_);
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
    return snapshot_.status.tuning;
  }
  [[nodiscard]] int changes() const {
    const std::lock_guard lock(mutex_);
    return changes_;
  }

 private:
  static Snapshot made_snapshot() {
    Snapshot snapshot;
    snapshot.now = TimePoint(std::chrono::seconds(90));
    snapshot.info = {.version = "0.1.0",
                     .boot_id = std::string(32, 'a'),
                     .uptime = std::chrono::seconds(90),
                     .backend = "host",
                     .page_kinds = {"thp", "4k"},
                     .attach_endpoint = "/run/kvd/attach.sock",
                     .command_endpoint = "ipc:///run/kvd/command.sock",
                     .metrics_endpoint = "127.0.0.1:9470"};
    snapshot.config = {{"pool.hbm", "256MiB"}};
    snapshot.quotas = {{"default", false, {}, {}, {}, {}}, {"users", true, {}, {}, {}, {}}};
    snapshot.happenings = {
        {1, TimePoint(std::chrono::seconds(60)), "warning", EngineId(3), "engine 'a' died"}};
    return snapshot;
  }

  void drained(const core::Drain& drain) {
    std::optional<core::DrainStatus> now;
    if (!drain.cancel) now = core::DrainStatus{snapshot_.now, std::nullopt, 1};
    if (drain.patience) now->deadline = snapshot_.now + *drain.patience;
    if (!drain.engine) snapshot_.status.drain = now;
    for (core::EngineStatus& engine : snapshot_.status.engines) {
      if (engine.id == drain.engine) engine.service.drain = now;
    }
  }

  mutable std::mutex mutex_;
  Snapshot snapshot_ = made_snapshot();
  std::optional<Error> failure_;
  bool ready_ = true;
  int changes_ = 0;
};

}  // namespace kvd::admin
