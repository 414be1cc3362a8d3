#pragma once

#include "kvd/core/ledger/context.hpp"
#include "kvd/core/ledger/requests.hpp"

namespace kvd::core {

/// Counts how long requests wait for their first iteration, their first token and each later one,
/// and whether tokens come in time: for the node, and by engine and class.
///
/// A goal counts as missed when it passes. Whether the token comes in the end, or never, changes
/// nothing any more. An engine that places its own blocks tells of its requests only in its calls.
/// Between two calls the goals of requests that wait or are parked pass, and tokens of running
/// requests count as if they came evenly.
///
/// Source: kvd design.
///
/// Owner: control thread. Cost: O(log requests) a token. A tick looks at up to kLooks requests
/// whose blocks kvd places, and at all others.
class Lateness {
 public:
  Lateness(Context& context, Requests& requests) : context_(context), requests_(requests) {}

  /// What a request waits for: its first iteration, its first token, or its next one.
  enum class To : std::uint8_t { kRun, kFirst, kNext };

  /// A wait is over, or several equal ones. `counted`: its goal had passed before, and that was
  /// counted then.
  void over(const Seen& request, To to, Nanoseconds took, bool counted = false,
            std::uint64_t times = 1);
  /// At every tick.
  void watch();

  // ---- requests whose blocks kvd places ----
  // The request has made a token. Returns whether it is the first.
  bool made(Request& request);
  /// Its first iteration begins.
  void entered(const Request& request);
  void ended(const Request& request);

 private:
  static constexpr std::size_t kLooks = 2048;

  void pass(Seen& request);
  void judge(const Seen& request, bool first, bool met, std::uint64_t times = 1);

  Context& context_;
  Requests& requests_;
};

}  // namespace kvd::core
