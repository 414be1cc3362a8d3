#pragma once

#include <cstdint>
#include <vector>

#include "kvd/core/deciding/layer_plans.hpp"
#include "kvd/core/moves/dram_copies.hpp"
#include "kvd/core/moves/ground.hpp"
#include "kvd/core/moves/needs.hpp"
#include "kvd/core/moves/promises.hpp"
#include "kvd/core/moves/regions.hpp"
#include "kvd/core/moves/streams.hpp"
#include "kvd/core/moves/supply.hpp"
#include "kvd/core/moves/swaps.hpp"

namespace kvd::core {

/// Decides who gets the HBM that is free: it serves claims in their order, lets running requests
/// grow, and chooses who gives way when nobody could grow any more.
///
/// Source: kvd/DESIGN.md "A step"; vLLM's rule for a full cache (the latest arrival gives way).
///
/// Owner: control thread. Cost: O(claims served) and O(running requests of the session).
class Claims : private Part {
 public:
  Claims(Ground& ground, DramCopies& copies, Streams& streams, Needs& needs, Supply& supply,
         Swaps& swaps, Promises& promises, Regions& regions, LayerPlans& plans)
      : Part(ground),
        prefixes_(ground.prefixes),
        copies_(copies),
        streams_(streams),
        needs_(needs),
        supply_(supply),
        swaps_(swaps),
        promises_(promises),
        regions_(regions),
        plans_(plans) {}

  /// After anything that may have made memory free. Regions come first, because they wait for whole
  /// slabs.
  void serve_everyone();
  /// Serves claims in their order. A claim that needs a while is overtaken only where it says why.
  void serve(DomainId domain);
  /// A request that waited for a slab to be mapped takes it at once: until the next step another
  /// request could.
  void feed_starved(Session& session);
  /// Takes a block for the next token of each running request. Where none could go on, one leaves.
  void grow_running(Session& session);

 private:
  [[nodiscard]] ErrorCode serve_claim(Request& request);
  bool relieve_class_pressure(const Request& request);
  enum class Emptying : std::uint8_t { kNone, kPinned, kStarted };
  Emptying empty_slab(const Request& request, SlabIndex slab);
  [[nodiscard]] bool is_curbed(Share share);
  [[nodiscard]] std::vector<DeviceId> short_devices(const Request& request);
  void make_way(Session& session, Request& hungry);
  void ask_paused(const Request& request, Share share);
  [[nodiscard]] Request* latest_paused(Share share);
  [[nodiscard]] Request* latest_staged(Session& session);
  [[nodiscard]] Share short_share(const Session& session) const;
  [[nodiscard]] ErrorCode grow_prefill(Request& request);
  [[nodiscard]] ErrorCode grow_next(Request& request);

  Prefixes& prefixes_;
  DramCopies& copies_;
  Streams& streams_;
  Needs& needs_;
  Supply& supply_;
  Swaps& swaps_;
  Promises& promises_;
  Regions& regions_;
  LayerPlans& plans_;
};

}  // namespace kvd::core
