#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "ipc/vocabulary/clock.hpp"
#include "kvd/admin/admin_backend.hpp"
#include "kvd/admin/link/channel.hpp"

namespace kvd::admin {

/// Asks kvd over the link, one question at a time, and keeps a snapshot for a tenth of a second.
/// It also keeps the counters of the last 15 minutes, taken from a snapshot every 5 s at most.
/// Owner: thread-safe.
class LinkBackend final : public AdminBackend {
 public:
  static constexpr Nanoseconds kFresh = std::chrono::milliseconds(100);
  static constexpr Nanoseconds kMoment = std::chrono::seconds(5);
  static constexpr Nanoseconds kHistory = std::chrono::minutes(15);

  /// `on_broken` is called when the link cannot be used any more; every answer is Unavailable then.
  LinkBackend(link::Channel& channel, const Clock& clock, std::function<void()> on_broken)
      : channel_(channel), clock_(clock), on_broken_(std::move(on_broken)) {}

  /// Answers are Unavailable until kvd has heard that this end is ready: before that the link takes
  /// no questions.
  void open();

  /// Call this once every kMoment, so that the history has no gaps while nobody asks. Its snapshot
  /// is shown to nobody: it may be older than a change that somebody has just made.
  void keep_history();

  Result<std::shared_ptr<const Snapshot>> snapshot() override;
  Result<link::Standing> standing(std::string_view token) override;
  Result<core::Tuning> change(std::string_view token, const TuningPatch& patch) override;
  Status clear_cache(std::string_view token) override;

 private:
  /// The answer's body, which follows its Verdict. The Verdict is Ok.
  Result<link::ByteVector> ask(link::Type type, std::span<const std::byte> body);
  /// Asks kvd, and adds the answer to the history when the next sample is due.
  Result<std::shared_ptr<const Snapshot>> look();

  std::mutex mutex_;
  link::Channel& channel_;  // guarded by mutex_, like what follows
  const Clock& clock_;
  const std::function<void()> on_broken_;
  std::shared_ptr<const Snapshot> kept_;
  std::shared_ptr<const History> history_ = std::make_shared<const History>();
  TimePoint kept_at_{0};
  bool open_ = false;
};

}  // namespace kvd::admin
