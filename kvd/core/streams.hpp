#pragma once

#include <cstdint>
#include <vector>

#include "kvd/core/ground.hpp"

namespace kvd::core {

/// Layers of requests that run while these are in DRAM: which leave and come back as the plan says,
/// what an iteration stages, and the fetches that bring it.
///
/// Source: OrbitFlow sec. 4.1; kvd/DESIGN.md "Blocks that come and go".
///
/// Owner: control thread. Cost: O(blocks) of a request whose blocks, staging or plan changed since
/// it was last asked, or that waits for others to want a block no more, else O(1).
class Streams {
 public:
  explicit Streams(Ground& ground)
      : context_(ground.context),
        store_(ground.store),
        requests_(ground.requests),
        memory_(ground.memory) {}

  /// At a step: layers leave and come back as the plan in force says.
  void install(Session& session);
  /// Slots for all that is missing in HBM. False: there are none, and the request cannot run.
  [[nodiscard]] bool stage(Session& session, Request& request);
  /// What the request's part of the iteration needs fetched, group by group.
  void add_fetches(Request& request, std::uint64_t iteration, StreamLayers& stream) const;
  /// Orders the fetches of an iteration, in which `streamed` run.
  void start(Session& session, StreamLayers stream, const std::vector<Request*>& streamed);
  /// The engine has finished iterations, or is gone: nobody waits for their fetches.
  void end(Session& session);
  /// Nothing of the stream is in flight any more.
  void ended(Ticket ticket, const store::Stream& stream);

 private:
  void evict_layers(Session& session, Request& request);
  void fetch_layers(Session& session, Request& request);
  [[nodiscard]] std::vector<StreamLayers::Fetch> fetches_of(const Request& request) const;

  Context& context_;
  store::Store& store_;
  Requests& requests_;
  RequestMemory& memory_;
};

}  // namespace kvd::core
