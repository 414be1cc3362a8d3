#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "kvd/core/ledger/context.hpp"
#include "kvd/core/ledger/requests.hpp"
#include "kvd/store/store.hpp"

namespace kvd::core {

/// Level-1 memory that comes and goes (a balloon). An engine has addresses for the most it may ever
/// get, and puts regions behind them as it needs them. It tells what its requests need, and hears
/// what it may have besides all others (fair_grants.hpp). It takes and hands back by itself: nobody
/// takes what it has, so quotas apply to it as to any region.
///
/// Source: kvd/DESIGN.md "Spaces".
///
/// Owner: control thread. Errors: as the replies say. Cost: O(slabs of the space) a command, a
/// share O(slabs of all spaces).
class Spaces {
 public:
  Spaces(Context& context, store::Store& store, Requests& requests)
      : context_(context), store_(store), requests_(requests) {}

  /// Regions and spaces share one numbering, so that a cache can name either.
  [[nodiscard]] RegionId next_id() { return RegionId(++last_id_); }

  void on_open(const Command& command, const OpenSpace& open);
  void on_close(const Command& command, const CloseSpace& close);
  void on_place(const Command& command, const PlaceRegion& place);
  /// `awaited`: HBM of the device that regions and requests of each domain wait for.
  void on_share(const Command& command, const ShareSpace& share,
                const std::map<DomainId, Bytes>& awaited);

  /// The region is no longer the session's.
  static void forget(Session& session, RegionId region);
  /// How many slabs the region or space has room for; none: the session has no such region or
  /// space.
  [[nodiscard]] static std::optional<std::uint32_t> slabs_of(const Session& session, RegionId id);

 private:
  [[nodiscard]] std::int64_t grant(const Session& asker, RegionId space,
                                   const std::map<DomainId, Bytes>& awaited);
  [[nodiscard]] Bytes slab_bytes(const Session& session) const {
    return store_.hbm.of(session.share().device).config().slab_bytes;
  }

  Context& context_;
  store::Store& store_;
  Requests& requests_;
  std::uint64_t last_id_ = 0;
};

/// What its engine wants behind the space beyond what is there, in whole slabs.
[[nodiscard]] Bytes lacks(const Space& space, Bytes slab, TimePoint now);

}  // namespace kvd::core
