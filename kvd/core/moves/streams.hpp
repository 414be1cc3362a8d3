#pragma once

#include <cstdint>
#include <vector>

#include "kvd/core/moves/ground.hpp"

namespace kvd::core {

/// Layers of requests that run while these layers are in DRAM: which leave and come back as the
/// plan says, what an iteration stages, and the fetches that bring it.
///
/// All ranks of a tensor-parallel group have the same layers away (OrbitFlow's tensor parallelism:
/// one plan, in force on all at once), and each streams its own through its own staging.
/// Source: OrbitFlow sec. 4.1; kvd/DESIGN.md "Blocks that come and go".
///
/// Owner: control thread. Cost: O(1) for a request whose blocks, staging and plan are unchanged
/// since it was last asked and that waits for no other request to stop wanting a block; else
/// O(blocks) of the request.
class Streams : private Part {
 public:
  explicit Streams(Ground& ground) : Part(ground) {}

  /// At a step: lets layers leave and come back as the plan in force says.
  void install(Session& session);
  /// Takes staging for all that is missing in HBM. False: there is none, and the request cannot
  /// run.
  [[nodiscard]] bool stage(Session& session, Request& request);
  /// Adds the fetches that the request's part of the iteration needs to the streams of its ranks,
  /// group by group. Returns how many groups of a rank are through once the last one is read; 0: it
  /// needs nothing.
  [[nodiscard]] std::uint32_t add_fetches(Request& request, std::uint64_t iteration,
                                          std::vector<StreamLayers>& by_rank) const;
  /// Orders the fetches of an iteration in which the requests of `streamed` run. Every rank gets a
  /// stream: each waits for its layers, whether or not any of its own are missing.
  void start(Session& session, std::vector<StreamLayers> by_rank,
             const std::vector<Request*>& streamed);
  /// The engine has finished iterations, or is gone: nobody waits for their fetches any more.
  void end(Session& session);
  /// Called when no copy of the stream is under way any more.
  void ended(Ticket ticket, const store::Stream& stream);

 private:
  void evict_layers(Session& session, Request& request);
  void fetch_layers(Session& session, Request& request);
  [[nodiscard]] std::vector<StreamLayers::Fetch> fetches_of(const Request& request) const;
};

}  // namespace kvd::core
