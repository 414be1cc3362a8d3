#pragma once

#include <chrono>
#include <cstdint>
#include <type_traits>

namespace kvd {

/// Tokens generated before they are due to the user: one is released per SLO interval while there
/// are any, so that a pause of the generator stays unseen. The client paces by it and the daemon
/// plans by it, both over the generation times of the step reports.
/// Source: OrbitFlow sec. 4.4 (token deposit), delivery at the due time.
/// Units:  Duration since any origin; nanoseconds, or a floating type that takes 1e-9 s for equal.
/// Cost:   constant per token; never allocates.
template <class Duration>
class TokenDeposit {
 public:
  /// The first token is delivered at `first`. Precondition: slo > 0.
  TokenDeposit(Duration slo, Duration first) : slo_(slo), due_(first + slo) {}

  /// A token was made at `at`, not before the one before it; deliver(time) is called for each token
  /// that reaches the user up to then.
  template <class Deliver>
  void generated(Duration at, Deliver deliver) {
    advance(at, deliver);
    if (left_ == 0 && due_ + kSlack < at) {
      // No token was there when one was due: it is late once, whatever the gap, and the clock
      // restarts.
      ++violations_;
      due_ = at + slo_;
      deliver(at);
      return;
    }
    ++left_;
    advance(at + kSlack, deliver);
  }

  /// Releases what is due by `now`.
  template <class Deliver>
  void advance(Duration now, Deliver deliver) {
    for (; left_ > 0 && due_ <= now; --left_) {
      deliver(due_);
      due_ += slo_;
    }
  }

  /// No more tokens come: those left reach the user at once.
  template <class Deliver>
  void finish(Duration at, Deliver deliver) {
    for (; left_ > 0; --left_) deliver(at);
  }

  /// Tokens made and not yet released.
  [[nodiscard]] std::int64_t left() const { return left_; }
  [[nodiscard]] std::int64_t violations() const { return violations_; }
  /// When the next token is due.
  [[nodiscard]] Duration due() const { return due_; }

 private:
  // Whole nanoseconds compare exactly; sums of fractions do not.
  static constexpr Duration kSlack =
      std::is_floating_point_v<typename Duration::rep>
          ? std::chrono::duration_cast<Duration>(std::chrono::nanoseconds(1))
          : Duration::zero();

  Duration slo_;
  Duration due_;
  std::int64_t left_ = 0;
  std::int64_t violations_ = 0;
};

}  // namespace kvd
