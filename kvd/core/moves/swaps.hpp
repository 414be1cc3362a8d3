#pragma once

#include <cstdint>
#include <vector>

#include "kvd/core/moves/compactor.hpp"
#include "kvd/core/moves/dram_copies.hpp"
#include "kvd/core/moves/ground.hpp"
#include "kvd/core/moves/streams.hpp"

namespace kvd::core {

/// Whole requests that go out to DRAM and come back, and what the end of a copy means for its
/// request.
///
/// Source: SuperInfer sec. 4.3; kvd/DESIGN.md, safety rule 3.
///
/// Owner: control thread. Cost: O(blocks) of the request.
class Swaps : private Part {
 public:
  Swaps(Ground& ground, DramCopies& copies, Streams& streams, Compactor& compactor)
      : Part(ground),
        knowledge_(ground.knowledge),
        prefixes_(ground.prefixes),
        copies_(copies),
        streams_(streams),
        compactor_(compactor) {}

  /// Takes HBM for all that the plan does not stream, and orders the copy to it. Errors as
  /// RequestMemory::grow.
  [[nodiscard]] ErrorCode swap_in(Request& request);
  /// Starts the copies of those requests of the session that have to leave and that nothing touches
  /// any more. A request for which DRAM has no room stays.
  void start_leaving(Session& session);
  /// False: it was no copy of a request.
  [[nodiscard]] bool on_copy(const CopyFinished& finished);

 private:
  void count_copy(const std::vector<DeviceId>& devices, Tier to, const CopyFinished& finished);
  void swap_out(Request& request);
  /// The places that lack a slot in HBM, if the request is to have `whole` blocks of each layer
  /// group except those that are away.
  [[nodiscard]] std::vector<std::uint32_t> lacking_in_hbm(const Request& request,
                                                          std::uint32_t whole) const;
  void finish(store::Transfer transfer, bool ok);
  void finish_out(Request& request, const store::Transfer& transfer, bool ok);
  void finish_in(Request& request, store::Transfer transfer, bool ok);
  void finish_sync(Request& request, const store::Transfer& transfer, bool ok);
  void finish_fetch(Request& request);

  Knowledge& knowledge_;
  Prefixes& prefixes_;
  DramCopies& copies_;
  Streams& streams_;
  Compactor& compactor_;
};

}  // namespace kvd::core
