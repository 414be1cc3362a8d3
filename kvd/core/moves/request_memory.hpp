#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/core/cache/prefixes.hpp"
#include "kvd/core/ledger/lateness.hpp"
#include "kvd/core/ledger/requests.hpp"
#include "kvd/store/store.hpp"

namespace kvd::core {

/// What one request holds: its blocks and its staging. The one way to give it blocks, to order that
/// they are copied, and to take them back; what somebody may still touch is held, never freed.
///
/// Source: kvd/DESIGN.md, safety rules 3 to 5.
///
/// Owner: control thread. Cost: O(blocks) of the request, as said per call less.
class RequestMemory {
 public:
  /// `most_given_up`: as Config::max_given_up.
  RequestMemory(store::Store& store, Requests& requests, Lateness& lateness, Prefixes& prefixes,
                std::uint32_t most_given_up)
      : store_(store),
        requests_(requests),
        lateness_(lateness),
        prefixes_(prefixes),
        most_given_up_(most_given_up),
        left_to_give_up_(most_given_up) {}

  /// Visits the HBM slots of its blocks and its staging.
  template <class F>
  void each_hbm_slot(const Request& request, F visit) const {
    store_.blocks.each_slot(request.table, Tier::kHbm, visit);
    for (const SlotId slot : request.layers.staging.slots()) {
      if (!slot.none()) visit(slot);
    }
  }
  /// Blocks of each layer group that its reported tokens fill.
  [[nodiscard]] std::uint32_t full_blocks(const Request& request) const;
  /// HBM it has, staging included: all, or of one device.
  [[nodiscard]] Bytes hbm_bytes(const Request& request) const;
  [[nodiscard]] Bytes hbm_bytes(const Request& request, DeviceId device) const;
  /// HBM for places of a block table, each on the device of its layer group, all or nothing; the
  /// slots in the order of the places. Errors as `grow`.
  [[nodiscard]] pool::SlotGrant take(const Session& session,
                                     const std::vector<std::uint32_t>& places);
  /// The same for `count` places from `first` on.
  [[nodiscard]] pool::SlotGrant take(const Session& session, std::uint32_t first,
                                     std::uint32_t count);
  /// Blocks for as many tokens, all or nothing: kOk | kWouldBlock (a slab is being mapped or
  /// zeroed) | kQuotaExceeded | kOutOfMemory.
  [[nodiscard]] ErrorCode grow(Request& request, Tokens tokens);
  /// Orders a copy of places of its table, which have slots in both tiers.
  [[nodiscard]] Ticket start(const Session& session, const Request& request, store::Purpose purpose,
                             std::vector<std::uint32_t> places);
  /// Gives up HBM slots that no copy touches: held until its engine cannot touch them either.
  void release_slots(const Request& request, std::vector<SlotId> hbm_slots);
  /// Gives up its staging slots, which open streams may still write.
  void release_staging(Request& request);
  /// Gives up blocks for tokens that no iteration was granted. A prompt that has none left has not
  /// begun.
  void release_unwritten(Session& session, Request& request);
  /// Seals what its reported tokens have filled. Safety rule 5: before it is published again.
  void seal_full_blocks(Request& request);
  /// Its end, whatever is under way: it is forgotten, and all it holds is given up. Blocks beyond
  /// what one event gives up remain taken until go_on().
  void end(Request& request);
  /// At the end of each event: gives up what ended requests still have, up to the event's bound.
  /// False: there was nothing.
  bool go_on();
  /// Blocks that ended requests still have.
  [[nodiscard]] std::size_t blocks_behind() const;
  /// HBM that ended requests of the engine, which died, still have alone.
  [[nodiscard]] Bytes hbm_behind(EngineId engine) const;

 private:
  /// Blocks, which others may find, of a request that is no more.
  struct Ended {
    Requests::Ended request;
    store::Hold hold;  ///< in which its slots go; dirty: its engine was dying
  };
  [[nodiscard]] store::Hold hold_for(const Request& request) const;
  void abandon(Request& request, Ticket transfer);
  /// All that are under way.
  void abandon_moves(Request& request);
  void read_on(const Request& request);
  bool give_up_ended();
  void give_up(Ended& ended, std::uint32_t kept);

  store::Store& store_;
  Requests& requests_;
  Lateness& lateness_;
  Prefixes& prefixes_;
  std::uint32_t most_given_up_;
  std::uint32_t left_to_give_up_;  ///< by the event in hand
  std::deque<Ended> ended_;
};

}  // namespace kvd::core
