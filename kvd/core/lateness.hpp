#pragma once

#include "kvd/core/context.hpp"
#include "kvd/core/placing.hpp"
#include "kvd/core/requests.hpp"

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

  // ---- requests whose blocks kvd places ----
  /// It has made a token: its first one (true), or more of them.
  bool made(Request& request);
  /// Its first iteration begins.
  void entered(const Request& request);
  void ended(const Request& request);
  /// At every tick.
  void watch();

  // ---- requests of an engine that places its blocks itself ----
  /// Its last call was learned.
  void take(Session& session, const Placing& placing);
  /// At every tick.
  void watch(Session& session, Placing& placing);

 private:
  static constexpr std::size_t kLooks = 2048;

  void count(Session& session, const Interval& interval);
  void judge(Session& session, std::uint8_t slo_class, bool first, bool met,
             std::uint64_t times = 1);

  Context& context_;
  Requests& requests_;
};

}  // namespace kvd::core
