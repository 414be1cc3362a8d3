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

/// What one request holds: its blocks and its staging. This is the one way to give it blocks, to
/// order their copies, and to take them back. What a copy or an engine may still touch is held,
/// never freed.
///
/// Source: kvd/DESIGN.md, safety rules 3 to 5.
///
/// Owner: control thread. Cost: O(blocks) of the request, or less where a call says so.
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
  /// How many blocks of each layer group its reported tokens fill.
  [[nodiscard]] std::uint32_t full_blocks(const Request& request) const;
  /// The HBM it has, staging included: in all, or on one device.
  [[nodiscard]] Bytes hbm_bytes(const Request& request) const;
  [[nodiscard]] Bytes hbm_bytes(const Request& request, DeviceId device) const;
  /// Takes HBM for places of a block table, each on the device of its layer group, all or nothing.
  /// The slots come in the order of the places. Errors as `grow`.
  [[nodiscard]] pool::SlotGrant take(const Session& session,
                                     const std::vector<std::uint32_t>& places);
  /// The same for `count` places from `first` on.
  [[nodiscard]] pool::SlotGrant take(const Session& session, std::uint32_t first,
                                     std::uint32_t count);
  /// Takes blocks for as many tokens, all or nothing: kOk | kWouldBlock (a slab is being mapped or
  /// zeroed) | kQuotaExceeded | kOutOfMemory.
  [[nodiscard]] ErrorCode grow(Request& request, Tokens tokens);
  /// Orders a copy of places of its table that have slots in both tiers.
  [[nodiscard]] Ticket start(const Session& session, const Request& request, store::Purpose purpose,
                             std::vector<std::uint32_t> places);
  /// Gives up HBM slots that no copy touches; they are held until its engine cannot touch them
  /// either.
  void release_slots(const Request& request, std::vector<SlotId> hbm_slots);
  /// Gives up its staging slots, which open streams may still write.
  void release_staging(Request& request);
  /// Gives up blocks for tokens that no iteration was granted. A prompt that has none left has not
  /// begun.
  void release_unwritten(Session& session, Request& request);
  /// Seals the blocks that its reported tokens have filled. Safety rule 5: this comes before they
  /// are published again.
  void seal_full_blocks(Request& request);
  /// Ends the request, whatever is under way: it is forgotten, and all it holds is given up. Blocks
  /// beyond what one event gives up remain taken until go_on().
  void end(Request& request);
  /// At the end of each event: gives up what ended requests still have, up to the event's bound.
  /// False: there was nothing.
  bool go_on();
  /// How many blocks ended requests still have.
  [[nodiscard]] std::size_t blocks_behind() const;
  /// The HBM that only ended requests of the engine, which died, still have.
  [[nodiscard]] Bytes hbm_behind(EngineId engine) const;

 private:
  /// The blocks, which others may find, of a request that has ended.
  struct Ended {
    Requests::Ended request;
    store::Hold hold;  ///< the hold that its slots go into; dirty: its engine was dying
  };
  [[nodiscard]] store::Hold hold_for(const Request& request) const;
  void abandon(Request& request, Ticket transfer);
  /// Abandons all that are under way.
  void abandon_moves(Request& request);
  void read_on(const Request& request);
  bool give_up_ended();
  void give_up(Ended& ended, std::uint32_t kept);

  store::Store& store_;
  Requests& requests_;
  Lateness& lateness_;
  Prefixes& prefixes_;
  std::uint32_t most_given_up_;
  std::uint32_t left_to_give_up_;  ///< left for the current event
  std::deque<Ended> ended_;
};

}  // namespace kvd::core
