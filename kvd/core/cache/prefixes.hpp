#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "ipc/vocabulary/digest.hpp"
#include "ipc/vocabulary/ids.hpp"
#include "kvd/core/cache/disk_cache.hpp"
#include "kvd/core/ledger/context.hpp"
#include "kvd/core/ledger/knowledge.hpp"
#include "kvd/core/ledger/requests.hpp"
#include "kvd/store/store.hpp"

namespace kvd::core {

/// What was found of a prompt.
enum class Found : std::uint8_t {
  kNothing,  ///< or nothing that can be used
  kInHbm,    ///< its first blocks are there
  kInDram,   ///< some of its first blocks are in DRAM alone, and have to be loaded
  kSoon,     ///< a copy or the disk brings it, or its engine has yet to map it: ask again
};

/// Requests whose leading tokens were computed before: by another request, in another session or
/// engine of the domain. What an engine tells of its blocks' content is kept with the request; full
/// blocks are found by it from then on, also after their request has ended (store/cache.hpp).
///
/// Source: kvd/DESIGN.md "Blocks that are found again".
///
/// Owner: control thread. Errors: none. Cost: O(blocks) of the request.
class Prefixes {
 public:
  Prefixes(Context& context, store::Store& store, Requests& requests, Knowledge& knowledge,
           DiskCache& disk)
      : context_(context), store_(store), requests_(requests), knowledge_(knowledge), disk_(disk) {}

  /// What a block of the request holds. False: out of order, of another fingerprint than the blocks
  /// before, or of one that the request can never have.
  [[nodiscard]] bool tell(Request& request, const Fingerprint& fingerprint, std::uint32_t block,
                          const Digest& digest);
  /// Gives a request that has no block yet its first ones: what is known of its prompt becomes
  /// these blocks, and counts as computed. At least one token is left to compute.
  [[nodiscard]] Found find(Request& request);
  /// It did not get the rest: it holds nothing again.
  void give_back(Request& request);

  /// Whether the disk has brought what it was asked for, behind the blocks that a prompt has, or
  /// will have once its iteration has ended.
  [[nodiscard]] bool knows_behind(const Request& request);
  /// The same, of which no iteration runs and all blocks are named: what is known behind becomes
  /// its own, and counts as computed. kNothing: it stays as it was.
  [[nodiscard]] Found find_behind(Request& request);
  /// It did not get there: it goes on behind what it had.
  void stay_behind(Request& request);
  /// It has nothing yet behind what is computed, but the disk is about to bring it: until when that
  /// is worth a wait. Who computes a part instead is not done sooner than by then.
  [[nodiscard]] std::optional<TimePoint> worth_waiting(const Request& request);
  /// DiskCache::brings_behind for it.
  void bring_behind(Request& request);
  /// It begins with what was found of it.
  void count(const Request& request);
  /// It goes on behind what was found, which begins with block `first`.
  void count(const Request& request, std::uint32_t first);
  /// After it has sealed blocks or was told of: others find them from now on. Of many that one
  /// event completes the rest follows with the events after it.
  void name(Request& request);
  /// At the end of each event: names a part of what earlier ones left.
  void name_on();
  /// Its blocks in HBM are in slabs that its engine maps. False: they are on their way to it.
  [[nodiscard]] bool is_mapped(const Request& request);
  /// Some block of it that others name, too, is on its way into the tier for one of them.
  [[nodiscard]] bool is_arriving(const Request& request, Tier tier) const;
  /// The request that named them left HBM, or is no more: those that nobody there names any more
  /// leave it. Returns their slots.
  [[nodiscard]] std::vector<SlotId> vacate_parked(const std::vector<store::RowId>& rows);
  [[nodiscard]] std::vector<store::RowId> rows(const Request& request) const;

 private:
  /// How many leading blocks of those that are known can be used.
  struct Usable {
    Found what = Found::kNothing;
    std::uint32_t blocks = 0;
    std::uint32_t in_hbm = 0;  ///< so many of them before the first that has to be loaded
  };
  /// It is in a slab that is being emptied for a region.
  [[nodiscard]] bool makes_way(const Request& request, std::uint32_t block) const;
  [[nodiscard]] Usable usable(const Request& request, std::uint32_t known) const;
  /// The same after the load policy has been asked.
  [[nodiscard]] Usable wanted(const Request& request, Usable usable);
  /// How many of its blocks can be found at most: at least one token is computed.
  [[nodiscard]] std::size_t most(const Request& request) const;
  void free(store::SlotsByTier slots);
  /// False: the rest of them is named later.
  [[nodiscard]] bool may_name(Request& request);
  [[nodiscard]] store::RowId row(const Request& request, std::uint32_t block) const;
  [[nodiscard]] store::KeySpace space(const Request& request) const;

  Context& context_;
  store::Store& store_;
  Requests& requests_;
  Knowledge& knowledge_;
  DiskCache& disk_;
  /// Blocks that one event names at most: a thousand prompts may be complete in one step, and the
  /// control thread has others to serve.
  static constexpr std::size_t kMostNamed = 2048;
  std::size_t names_left_ = kMostNamed;  ///< of the event in hand
  std::deque<RequestKey> unnamed_;       ///< requests whose rest is named later; some have ended
};

}  // namespace kvd::core
