#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "client_lib/engine/serve/completion.hpp"
#include "ipc/vocabulary/clock.hpp"
#include "ipc/vocabulary/deposit.hpp"

namespace kvd::engine {

/// Hands tokens to their sinks at the pace of the request's SLO: the client's half of the deposit,
/// the same function over the same times as the daemon's.
/// Source: OrbitFlow sec. 4.4; ipc/vocabulary/deposit.hpp.
/// Owner:  thread-safe; sinks are called under its lock, by whoever brings a token or by its
/// thread.
class Delivery {
 public:
  explicit Delivery(const Clock& clock) : clock_(clock) {}
  ~Delivery();
  Delivery(const Delivery&) = delete;
  Delivery& operator=(const Delivery&) = delete;

  /// Starts the thread that releases tokens as they fall due; without it only release_due() does.
  void start();

  /// `tbt_slo` 0: no pace.
  void open(std::uint64_t request, std::shared_ptr<TokenSink> sink, Nanoseconds tbt_slo);
  // These calls do nothing for a request that is no longer open.
  void accepted(std::uint64_t request);
  void found(std::uint64_t request, std::uint64_t tokens);
  void token(std::uint64_t request, Piece piece);
  /// Everything left reaches the user at once, `tail` after it.
  void end(std::uint64_t request, FinishReason reason, const std::string& tail);
  void fail(std::uint64_t request, const Error& error);
  /// The user has gone: forget it.
  void drop(std::uint64_t request);

  /// Releases what is due. Returns when the next token is due; none when nothing waits.
  std::optional<TimePoint> release_due();

 private:
  struct Open {
    std::shared_ptr<TokenSink> sink;
    Nanoseconds slo{0};
    std::optional<TokenDeposit<Nanoseconds>> deposit;  ///< from the first token on
    std::deque<Piece> waiting;
  };

  static void release(Open& open);
  std::optional<TimePoint> release_due_locked();
  void serve();

  const Clock& clock_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, Open> open_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace kvd::engine
