#pragma once

#include "kvd/core/moves/ground.hpp"
#include "kvd/core/moves/swaps.hpp"

namespace kvd::core {

/// Prompts that go on behind blocks that were brought while they were computed. Under load.policy
/// `overlap` the disk reads the end of a prompt while its engine computes the head. Once the head
/// reaches what has come, the request takes it over and computes what stands behind it. What is
/// about to come is waited for, but no longer than a part of it takes to compute; what is not there
/// then is computed like any other part.
///
/// The change happens between two iterations of the request: with a pipelined engine it misses one.
/// Blocks that are in DRAM cross the link first, like those of a request that comes back.
///
/// Source: kvd/DESIGN.md "Blocks on disk".
///
/// Owner: control thread. Errors: none. Cost: O(1) a prompt that is computed, O(blocks) of one that
/// goes on.
class Skips {
 public:
  Skips(Ground& ground, Swaps& swaps)
      : context_(ground.context),
        requests_(ground.requests),
        prefixes_(ground.prefixes),
        memory_(ground.memory),
        swaps_(swaps) {}

  /// Lets requests of the session skip what the disk brought, before the next iteration is put
  /// together.
  void go_on(Session& session);
  /// The disk has brought something. On idle engines the requests that wait for it go on at once,
  /// so that it crosses the link before the next step.
  void on_read();

 private:
  [[nodiscard]] static bool may_skip(const Request& request);
  void skip(Session& session, Request& request);

  Context& context_;
  Requests& requests_;
  Prefixes& prefixes_;
  RequestMemory& memory_;
  Swaps& swaps_;
};

}  // namespace kvd::core
