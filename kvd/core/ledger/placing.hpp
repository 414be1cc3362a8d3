#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/core/door/events.hpp"
#include "kvd/core/ledger/context.hpp"
#include "kvd/core/ledger/lateness.hpp"
#include "kvd/core/ledger/session.hpp"

namespace kvd::core {

/// Follows, from one call to the next, the requests of an engine that places its own blocks
/// (Session::placed): the engine tells where each request is, and this class follows what became of
/// it. Decisions do not count: a request that was told to leave and did not still runs.
///
/// The engine's clock counts. Ages are what the engine says, and what was noted before moves along
/// with its arrivals. So an engine that stood still, or that has another clock, finds its deposits
/// as they were.
///
/// Source: kvd design.
///
/// Owner: control thread. Cost: O(n log n) in the requests of a call; allocates while they grow in
/// number.
class Placing {
 public:
  Placing(const Context& context, Lateness& lateness) : context_(context), lateness_(lateness) {}

  /// The id that the call names twice, checked before anything is learned from the call.
  [[nodiscard]] std::optional<RequestId> named_twice(const Schedule& told);
  /// Takes in the call that named_twice() looked at last. `goals` has the goal of each of its
  /// requests. Returns the requests in the call's order; they stay valid until the session's next
  /// call.
  std::span<PlacedRequest* const> learn(Session& session, const Schedule& told,
                                        std::span<const Goal> goals);

 private:
  [[nodiscard]] PlacedRequest follow(Session& session, const Schedule::Request& told,
                                     const PlacedRequest* before, const Goal& goal);
  void end_waits(const Schedule::Request& told, const PlacedRequest* before, PlacedRequest& known);
  void gone(const PlacedRequest& known);

  const Context& context_;
  Lateness& lateness_;
  // Scratch for the current call, kept for its memory.
  std::vector<std::uint32_t> order_;    ///< of its requests, by id
  std::vector<PlacedRequest> before_;   ///< by id, as of the last call
  std::vector<PlacedRequest*> called_;  ///< in the order of the call
  TimePoint last_call_{0};
  Nanoseconds drift_{0};  ///< how far the engine's clock fell behind ours since the last call
};

}  // namespace kvd::core
