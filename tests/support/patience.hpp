#pragma once

#include <chrono>
#include <thread>

namespace kvd::test {

/// Far above what anything here needs, even under ThreadSanitizer on a busy machine, so that only a
/// hang reaches it.
constexpr std::chrono::seconds kPatience{60};

/// Asks until the condition holds; false when it did not in time. The one place where tests look
/// again after a while: what they ask for here (a daemon's status, a daemon that comes back, the
/// kernel's tables) sends nobody a signal. Tests wait for what does send a signal: a line of a
/// child, a frame, an exit.
template <class Condition>
[[nodiscard]] bool poll_until(Condition condition, std::chrono::milliseconds patience = kPatience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace kvd::test
