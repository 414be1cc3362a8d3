#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/unique_fd.hpp"
#include "kernels/device/slab_source.hpp"
#include "kvd/core/door/events.hpp"
#include "kvd/daemon/config/config.hpp"
#include "kvd/daemon/config/domains.hpp"
#include "kvd/mover/slab_store.hpp"
#include "kvd/tiers/kept/state.hpp"

namespace kvd::daemon {

using KeptDescriptors = std::map<std::string, UniqueFd>;

/// Memory that outlives kvd, and the records of what it holds. Takes over what the earlier daemon
/// left with kvd's starter, as far as it fits this configuration, and has this daemon's memory
/// kept. DRAM is taken over as it is, and so are regions, whose engines may go on computing there.
/// Engines of the earlier kvd may still map, read and write other HBM, so its bytes are copied to
/// new memory, and the old is let go as it is.
///
/// In order: take(); reopen() of each slab; rows() and regions(); keep().
///
/// Source: kvd/DESIGN.md "Blocks that outlive kvd", kvd/tiers/kept/FORMAT.md.
/// Owner:  control thread; renewed() any.
/// Errors: none; what is of no use is told to the log, counted and left behind.
class KeptMemory {
 public:
  /// `config`: with the backend that was taken. `reopens`: as SlabSource::reopens_slabs().
  /// `kept`: as take_kept_descriptors(). Domains of rows are entered, as by an engine of theirs.
  static KeptMemory take(const Config& config, bool reopens, KeptDescriptors kept,
                         Domains& domains);

  /// Slots and slabs by their tier.
  using Slot = std::pair<Tier, SlotId>;
  using Slab = std::pair<Tier, SlabIndex>;

  /// Whether this daemon's DRAM is to outlive it.
  [[nodiscard]] bool on() const { return state_.has_value(); }
  /// The same of HBM.
  [[nodiscard]] bool keeps_hbm() const { return on() && most_[0] > 0; }
  /// Bytes of slabs that are there already.
  [[nodiscard]] Bytes bytes(Tier tier) const;
  /// Bytes of slabs of HBM on the device.
  [[nodiscard]] Bytes bytes(DeviceId device) const;
  /// Memory for the slab, with the earlier slab's bytes where rows are in it, the earlier slab
  /// itself where it is of a region, else zeroed; none:
  /// there is none. HBM takes one slab more for a moment. Where there is no room for that, the
  /// device's last earlier slab goes, and if that is not enough, all of them go.
  [[nodiscard]] std::optional<kernels::Slab> reopen(kernels::SlabSource& backend, Slab slab);
  /// The rows whose bytes match their records. Every byte is compared.
  [[nodiscard]] core::AdoptRows rows(const mover::SlabStore& slabs);
  /// The regions of which a slab was reopened. One that is not whole has no domain.
  [[nodiscard]] core::AdoptRegions regions();
  /// Hands new memory to its keeper. False: nobody keeps it, and on() is false from now on.
  bool keep(const mover::SlabStore& slabs);
  /// The slab has other memory from now on, which is kept in place of the old. Waits for whoever
  /// keeps it, two seconds at most. Before anything is written down of the slab.
  void renewed(Slab slab, const Result<UniqueFd>& memory) const;
  [[nodiscard]] kept::State& state() { return *state_; }
  /// The place where the content of a slot is recorded.
  [[nodiscard]] std::map<Slot, std::uint32_t>& records() { return records_; }

 private:
  struct Row {
    core::KeptBlocks blocks;
    std::vector<std::array<std::uint32_t, 3>> sums;  ///< by layer group
    std::vector<std::uint32_t> records;              ///< likewise; kept::kRecords: not there
  };
  enum class Fault : std::uint8_t { kNone, kTorn, kAltered, kMisfit, kNobodys };

  /// False: not even those of DRAM can be kept.
  [[nodiscard]] bool choose_slabs(const Config& config);
  void open_state(KeptDescriptors& kept);
  /// This daemon's memory ends with it after all.
  void switch_off(const std::string& why);
  void read(const Config& config, Domains& domains);
  struct RegionSlabs {
    core::RegionName name;
    Digest proof;
    DomainId domain;
    std::map<std::uint32_t, std::pair<SlabIndex, std::uint32_t>>
        at;  ///< slab and record, by position
    std::uint32_t count = 0;
    bool fits = true;
  };
  using DomainOf = std::function<DomainId(const kept::Record&)>;
  void read_region_slab(std::uint32_t at, const kept::Record& record, const DomainOf& domain_of);
  /// Lets go of regions that are not whole.
  void choose_regions();
  [[nodiscard]] Fault fault_of(const Row& row) const;
  /// Stops keeping earlier HBM without rows.
  void let_go_unused();
  [[nodiscard]] Result<kernels::Slab> copy(kernels::SlabSource& backend, Slab slab,
                                           const UniqueFd& old);
  /// Lets go of the device's last earlier slab, unless it comes before this one. False: there is
  /// none.
  bool let_go_last(Slab slab);
  /// Errors: those of SlabStore::read().
  [[nodiscard]] static Result<bool> is_as_written(const Row& row, const mover::SlabStore& slabs);
  void drop(const Row& row, Fault fault);

  Bytes slab_bytes_;
  std::optional<kept::State> state_;
  bool new_state_ = false;
  std::array<std::uint32_t, kTiers> most_{};               ///< slabs that are kept
  std::map<Slab, UniqueFd> slabs_;                         ///< not reopened yet
  std::map<Slab, bool> reopened_;                          ///< with their bytes
  std::set<Slab> kept_;                                    ///< by whoever started kvd
  std::uint32_t device_slabs_ = 0;                         ///< of HBM, on each device
  std::map<Slab, std::vector<kernels::SlabExtent>> used_;  ///< that rows are in, and where
  std::vector<Row> rows_;
  std::map<kept::Hash, RegionSlabs> regions_;  ///< by their names
  std::map<Slab, bool> of_regions_;            ///< slabs of regions; true: reopened in place
  std::map<Slot, std::uint32_t> records_;
  core::KeptDrops dropped_;
};

}  // namespace kvd::daemon
