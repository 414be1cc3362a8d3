#pragma once

#include <vector>

#include "kvd/core/moves/ground.hpp"
#include "kvd/core/moves/streams.hpp"

namespace kvd::core {

/// Tells an engine what to do next: which requests run in the next iteration with how many tokens,
/// which do not and why, the block table, and the fetches of layers that stream.
///
/// Owner: control thread. Cost: O(requests of the session); a row of the table O(1) unless its
/// request's blocks have changed.
class Replies : private Part {
 public:
  Replies(Ground& ground, Streams& streams)
      : Part(ground), lateness_(ground.lateness), line_(ground.line), streams_(streams) {}

  /// Grants the next iteration and publishes its table.
  [[nodiscard]] StepReply build(Session& session);

 private:
  /// The next iteration, as far as it has been granted.
  struct Draft {
    StepReply reply;
    std::vector<StreamLayers> streams;  ///< by rank
    std::vector<Request*> granted, streamed;
    std::vector<TableRow> rows;
  };
  [[nodiscard]] std::vector<Request*> in_order(const Session& session) const;
  [[nodiscard]] static bool begins_with_prompt(const Request& request);
  [[nodiscard]] Hold hold_or_none(Session& session, Request& request, Tokens tokens, bool promises);
  void grant(Session& session, Request& request, Tokens tokens, Draft& next);
  void publish(Session& session, Draft& next);
  [[nodiscard]] static Tokens prefill_tokens(const Session& session, const Request& request);
  [[nodiscard]] TableRow table_row(const Session& session, Request& request) const;
  /// The slots of a request whose blocks are all in HBM.
  [[nodiscard]] std::vector<SlotId> slots_in_hbm(const Request& request) const;
  [[nodiscard]] std::vector<SlotId> row_slots(const Request& request) const;
  [[nodiscard]] static Hold hold_reason(const Request& request, bool promises);

  Lateness& lateness_;
  ServingOrder& line_;
  Streams& streams_;
};

}  // namespace kvd::core
