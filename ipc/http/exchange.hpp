#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ipc/vocabulary/unique_fd.hpp"

namespace kvd::http {

/// A whole answer, as it goes over the wire.
[[nodiscard]] std::string whole_answer(int status, const std::string& body,
                                       std::string_view type = "application/json");

/// Bytes for clients, from any thread to the front's.
class Outbox {
 public:
  struct Piece {
    std::uint64_t connection = 0;
    std::string bytes;
    bool last = false;
  };

  explicit Outbox(UniqueFd bell) : bell_(std::move(bell)) {}
  void post(Piece piece);
  void ring();
  [[nodiscard]] std::vector<Piece> take();
  [[nodiscard]] int bell() const { return bell_.get(); }

 private:
  const UniqueFd bell_;  ///< an eventfd
  std::mutex mutex_;
  std::vector<Piece> pieces_;  // guarded by mutex_
};

/// How an answer ended, and how much of it is still to be sent. Owner: thread-safe.
class Outcome {
 public:
  void end(bool sent);
  /// Bytes that were written, and not yet taken by the client.
  [[nodiscard]] std::size_t waiting() const { return waiting_; }
  void add_waiting(std::size_t bytes) { waiting_ += bytes; }
  void take_waiting(std::size_t bytes) { waiting_ -= bytes; }
  /// See Exchange::on_end.
  void on_end(std::function<void(bool sent)> call);

 private:
  std::mutex mutex_;
  std::optional<bool> sent_;        // guarded by mutex_
  std::function<void(bool)> call_;  // guarded by mutex_
  std::atomic<std::size_t> waiting_ = 0;
};

/// What an answer has to leave out for its client.
struct Manner {
  bool no_body = false;    ///< the method was HEAD
  bool no_chunks = false;  ///< HTTP/1.0: the end of the connection is the end of the body
};

/// The headers of an answer, with the empty line behind them.
[[nodiscard]] std::string head_of_answer(std::string bytes);

/// The answer to one request, in whatever pieces. Its destruction before the last piece hangs up.
/// Owner: one thread at a time; may outlive the front.
class Exchange {
 public:
  Exchange(std::shared_ptr<Outbox> outbox, std::shared_ptr<Outcome> outcome,
           std::uint64_t connection, Manner manner)
      : outbox_(std::move(outbox)),
        outcome_(std::move(outcome)),
        connection_(connection),
        manner_(manner) {}
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  /// Bytes as they go over the wire, the status line and all headers in the first piece. After the
  /// last piece, or the first where no body is wanted, the client is hung up on.
  void write(std::string bytes, bool last);
  [[nodiscard]] bool may_be_chunked() const { return !manner_.no_chunks; }
  /// A whole answer with a body of JSON or, where `type` says so, of another kind.
  void answer(int status, const std::string& body, std::string_view type = "application/json");
  /// Calls back once when the answer has ended, and tells whether all of it was sent. If the answer
  /// has ended already it calls back at once, else on the front's thread.
  void on_end(std::function<void(bool sent)> call) { outcome_->on_end(std::move(call)); }
  [[nodiscard]] std::shared_ptr<const Outcome> outcome() const { return outcome_; }

 private:
  const std::shared_ptr<Outbox> outbox_;
  const std::shared_ptr<Outcome> outcome_;
  const std::uint64_t connection_;
  const Manner manner_;
  bool complete_ = false;  ///< the last piece was written
};

}  // namespace kvd::http
