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

/// Follows, from one call to the next, the requests of an engine that places its blocks itself
/// (Session::placed): the engine tells where each is, this follows what became of it. Nothing that
/// was decided counts: who is told to leave and does not simply still runs. The clock that counts
/// is the engine's: its ages are what it says, and what was noted before moves along with its
/// arrivals, so that an engine that stood still, or whose clock is another one, finds its deposits
/// as they were.
///
/// Source: kvd design.
///
/// Owner: control thread. Cost: O(n log n) in the requests of a call; allocates while they grow in
/// number.
class Placing {
 public:
  Placing(const Context& context, Lateness& lateness) : context_(context), lateness_(lateness) {}

  /// The id that the call names twice, before anything is learned from it.
  [[nodiscard]] std::optional<RequestId> named_twice(const Schedule& told);
  /// Takes in the call that named_twice() looked at last. `goals`: of each of its requests. Returns
  /// these in its order; they stand there until the session's next call.
  std::span<PlacedRequest* const> learn(Session& session, const Schedule& told,
                                        std::span<const Goal> goals);

 private:
  [[nodiscard]] PlacedRequest follow(Session& session, const Schedule::Request& told,
                                     const PlacedRequest* before, const Goal& goal);
  void end_waits(const Schedule::Request& told, const PlacedRequest* before, PlacedRequest& known);
  void gone(const PlacedRequest& known);

  const Context& context_;
  Lateness& lateness_;
  // These are scratch for the call in hand, kept for their memory.
  std::vector<std::uint32_t> order_;    ///< of its requests, by id
  std::vector<PlacedRequest> before_;   ///< by id, as of the call before
  std::vector<PlacedRequest*> called_;  ///< in its order
  TimePoint last_call_{0};
  Nanoseconds drift_{0};  ///< of the engine's clock behind ours since the last call
};

}  // namespace kvd::core
