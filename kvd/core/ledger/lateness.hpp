#pragma once

#include "kvd/core/ledger/context.hpp"
#include "kvd/core/ledger/requests.hpp"

namespace kvd::core {

/// Counts how long requests wait for their first iteration, their first token and each other one,
/// and whether these come in time: of the node, and by engine and class. A goal is missed when it
/// passes. Whether the token comes at last, or never, changes nothing any more. An engine that
/// places its blocks tells of its requests in its calls alone. Between two calls the goals of
/// requests that wait or are parked pass, and tokens of those that run count as if they came
/// evenly.
///
/// Source: kvd design.
///
/// Owner: control thread. Cost: O(log requests) a token; a tick looks at kLooks requests at most
/// whose blocks kvd places, and at all others.
class Lateness {
 public:
  Lateness(Context& context, Requests& requests) : context_(context), requests_(requests) {}

  /// What requests wait for: their first iteration, or a token.
  enum class To : std::uint8_t { kRun, kFirst, kNext };

  /// A wait is over, or so many alike. `counted`: its goal had passed before, which was counted
  /// then.
  void over(const Seen& request, To to, Nanoseconds took, bool counted = false,
            std::uint64_t times = 1);
  /// At every tick.
  void watch();

  // ---- requests whose blocks kvd places ----
  /// It has made a token: its first one (true), or more of them.
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
