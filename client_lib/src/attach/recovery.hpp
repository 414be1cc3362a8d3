#pragma once

#include <cstdint>
#include <unordered_set>

#include "ipc/vocabulary/ids.hpp"

namespace kvd::client {

/// Decides what a call does after the daemon went away: attach again silently, or first tell the
/// engine, once, that its requests are lost.
/// Owner:   the client, under its mutex
class Recovery {
 public:
  enum class Need {
    kNothing,     ///< attached: go on
    kAttach,      ///< attach again, then go on
    kReportLoss,  ///< answer Unavailable; the next call attaches again
  };

  /// A rank of a group may run requests that another rank submitted, so it always hears of a loss.
  explicit Recovery(bool in_group = false) : in_group_(in_group) {}

  void on_attached() { attached_ = true; }
  void on_lost() {
    attached_ = false;
    loss_untold_ = loss_untold_ || in_group_ || !requests_.empty();
    requests_.clear();
  }
  /// The engine has seen Unavailable from a level-3 call.
  void on_loss_told() { loss_untold_ = false; }

  void on_submitted(RequestId request) { requests_.insert(request); }
  void on_ended(RequestId request) { requests_.erase(request); }

  [[nodiscard]] bool attached() const { return attached_; }
  [[nodiscard]] bool loss_untold() const { return loss_untold_; }
  [[nodiscard]] Need need_for_memory_call() const {
    return attached_ ? Need::kNothing : Need::kAttach;
  }
  [[nodiscard]] Need need_for_request_call() const {
    return loss_untold_ ? Need::kReportLoss : need_for_memory_call();
  }

 private:
  bool in_group_;
  bool attached_ = false;
  bool loss_untold_ = false;
  std::unordered_set<RequestId> requests_;
};

}  // namespace kvd::client
