#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "ipc/vocabulary/digest.hpp"
#include "ipc/vocabulary/ids.hpp"
#include "kvd/core/cache/disk_cache.hpp"
#include "kvd/core/ledger/context.hpp"
#include "kvd/core/ledger/knowledge.hpp"
#include "kvd/core/ledger/requests.hpp"
#include "kvd/store/store.hpp"

namespace kvd::core {

/// What was found for a prompt.
enum class Found : std::uint8_t {
  kNothing,  ///< nothing, or nothing that can be used
  kInHbm,    ///< its first blocks are in HBM
  kInDram,   ///< some of its first blocks are in DRAM alone, and have to be loaded
  kSoon,     ///< a copy or the disk is bringing it, or its engine has yet to map it: ask again
};

/// Requests whose leading tokens were computed before: by another request, or in another session or
/// engine of the domain. What an engine tells of its blocks' content is kept with the request.
/// Others find full blocks by it from then on, also after the request has ended (store/cache.hpp).
///
/// Source: kvd/DESIGN.md "Blocks that are found again".
///
/// Owner: control thread. Errors: none. Cost: O(blocks) of the request.
class Prefixes {
 public:
  Prefixes(Context& context, store::Store& store, Requests& requests, Knowledge& knowledge,
           DiskCache& disk)
      : context_(context), store_(store), requests_(requests), knowledge_(knowledge), disk_(disk) {}

  /// Takes in what a block of the request holds. False: the block is out of order, has another
  /// fingerprint than the blocks before it, or is one that the request can never have.
  [[nodiscard]] bool tell(Request& request, const Fingerprint& fingerprint, std::uint32_t block,
                          const Digest& digest);
  /// Gives a request that has no block yet its first ones: the known part of its prompt becomes
  /// these blocks and counts as computed. At least one token is left to compute.
  [[nodiscard]] Found find(Request& request);
  /// The request did not get the rest of its blocks: it holds nothing again.
  void give_back(Request& request);

  /// Counts a request that begins with blocks that were found.
  void count(const Request& request);
  /// Names the request's sealed blocks, so that others find them from now on. It is called after
  /// blocks were sealed or their content was told. Where one event completes many, the rest follows
  /// with the events after it.
  void name(Request& request);
  /// At the end of each event: names a part of what earlier events left.
  void name_on();
  /// Its engine maps all slabs that its blocks in HBM are in. False: some are on their way to it.
  [[nodiscard]] bool is_mapped(const Request& request);
  /// Some block that it shares with others is on its way into the tier for one of them.
  [[nodiscard]] bool is_arriving(const Request& request, Tier tier) const;
  /// The request that named these rows left HBM or has ended: rows that no request in HBM names any
  /// more leave HBM. Returns their slots.
  [[nodiscard]] std::vector<SlotId> vacate_parked(const std::vector<store::RowId>& rows);
  [[nodiscard]] std::vector<store::RowId> rows(const Request& request) const;

 private:
  /// How many of the known leading blocks can be used.
  struct Usable {
    Found what = Found::kNothing;
    std::uint32_t blocks = 0;
    std::uint32_t in_hbm = 0;  ///< those before the first block that has to be loaded
  };
  /// The block is in a slab that is being emptied for a region.
  [[nodiscard]] bool makes_way(const Request& request, std::uint32_t block) const;
  [[nodiscard]] Usable usable(const Request& request, std::uint32_t known) const;
  /// What of it the load policy wants.
  [[nodiscard]] Usable wanted(const Request& request, Usable usable);
  /// The most of its blocks that can be found: at least one token is computed.
  [[nodiscard]] std::size_t most(const Request& request) const;
  void free(store::SlotsByTier slots);
  /// False: the rest of its blocks is named later.
  [[nodiscard]] bool may_name(Request& request);
  [[nodiscard]] store::RowId row(const Request& request, std::uint32_t block) const;
  [[nodiscard]] store::KeySpace space(const Request& request) const;

  Context& context_;
  store::Store& store_;
  Requests& requests_;
  Knowledge& knowledge_;
  DiskCache& disk_;
  /// The most blocks that one event names: a thousand prompts may be complete in one step, and the
  /// control thread has others to serve.
  static constexpr std::size_t kMostNamed = 2048;
  std::size_t names_left_ = kMostNamed;  ///< what the current event may still name
  std::deque<RequestKey> unnamed_;       ///< requests whose rest is named later; some have ended
};

}  // namespace kvd::core
