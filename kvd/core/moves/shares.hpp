#pragma once

#include <cstdint>
#include <map>
#include <set>

#include "kvd/core/moves/dram_copies.hpp"
#include "kvd/core/moves/ground.hpp"
#include "kvd/core/moves/needs.hpp"
#include "kvd/core/moves/supply.hpp"

namespace kvd::core {

/// Shares out memory that several domains want at the same time: each has a right to an equal part
/// of it, besides what it is guaranteed. While nobody waits in vain, only quotas apply.
///
/// No domain loses what it has begun: it keeps what its requests hold and DRAM has no room for, and
/// what its largest request needs to run. A request that would not fit an equal part waits for what
/// comes free, as it would without shares.
///
/// Source: kvd/DESIGN.md "Domains and quotas"; max-min fairness.
/// Owner: control thread. Cost: O(slabs + requests inside + those in line that would fill the
/// pool), where there are several domains.
class Shares : private Part {
 public:
  Shares(Ground& ground, DramCopies& copies, Needs& needs, Supply& supply)
      : Part(ground), copies_(copies), needs_(needs), supply_(supply) {}

  /// Ends what was shared out. It comes before the next two, which look at each device and then at
  /// DRAM.
  void begin();
  /// `awaited`: what regions wait for. True: domains want more than there is.
  bool share_out(DeviceId device, const std::map<DomainId, Bytes>& awaited);
  bool share_out_dram();

 private:
  /// What the requests of a domain want or hold on a device.
  struct Requested {
    Bytes lacks;    ///< what they wait for
    Bytes grows;    ///< the part of it for those that run
    Bytes leaves;   ///< what rotation could move to DRAM
    Bytes largest;  ///< the most that one that has begun needs to run
  };
  [[nodiscard]] Requested requested(Share share, Bytes most);
  [[nodiscard]] Requested inside(Share share, Bytes most);
  [[nodiscard]] Bytes in_line(Share share, Bytes most) const;
  /// Slabs of the domain, without those that can make way at once.
  [[nodiscard]] std::uint32_t firm(DomainId domain, Tier tier, DeviceId device, Bytes copied) const;

  DramCopies& copies_;
  Needs& needs_;
  Supply& supply_;
  std::set<DomainId> domains_;         ///< domains with engines; the rest is by domain or share
  std::map<DomainId, Bytes> to_move_;  ///< what rotation would move to DRAM for those that wait
};

}  // namespace kvd::core
