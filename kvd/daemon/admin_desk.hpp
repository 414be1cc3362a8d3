#pragma once

#include <string>
#include <utility>

#include "ipc/vocabulary/clock.hpp"
#include "ipc/vocabulary/result.hpp"
#include "kvd/admin/link/channel.hpp"

namespace kvd::daemon {

class Daemon;

/// Answers kvd-admin's questions for the daemon. It alone knows the token: kvd-admin passes on what
/// a request carried, so it can change nothing that no request with the token asked for. At most
/// ten snapshots a second are taken, one more after each change, and a thousand questions answered.
/// Owner:  one thread, which may wait for the control thread and for the next snapshot's time.
class AdminDesk {
 public:
  /// `token` is not empty. `token_file` is written again where it is gone; empty: there is no file.
  /// The references outlive the desk.
  AdminDesk(Daemon& daemon, const Clock& clock, std::string token, std::string token_file = "")
      : daemon_(daemon),
        clock_(clock),
        token_(std::move(token)),
        token_file_(std::move(token_file)) {}

  /// Reads one question and answers it. Errors: those of the channel, which is then of no use;
  /// InvalidArgument for bytes that are no question.
  [[nodiscard]] Status serve(admin::link::Channel& channel);

 private:
  using ByteVector = admin::link::ByteVector;

  [[nodiscard]] Result<ByteVector> answer(const admin::link::Message& message);
  [[nodiscard]] Result<ByteVector> snapshot();
  [[nodiscard]] Result<ByteVector> change(std::span<const std::byte> body);
  [[nodiscard]] Result<ByteVector> clear_cache(std::span<const std::byte> body);
  /// Reports one that is wrong.
  [[nodiscard]] bool is_token(const admin::link::Token& sent);

  /// Waits where questions come faster than the bound allows.
  void pace();

  Daemon& daemon_;
  const Clock& clock_;
  const std::string token_, token_file_;
  TimePoint next_snapshot_{0};
  TimePoint next_question_{0};
};

}  // namespace kvd::daemon
