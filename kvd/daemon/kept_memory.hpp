#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ipc/vocabulary/unique_fd.hpp"
#include "kernels/device/device_backend.hpp"
#include "kvd/core/events.hpp"
#include "kvd/daemon/config.hpp"
#include "kvd/daemon/domains.hpp"
#include "kvd/mover/slab_store.hpp"
#include "kvd/tiers/kept/state.hpp"

namespace kvd::daemon {

using KeptDescriptors = std::map<std::string, UniqueFd>;

/// DRAM that outlives kvd, and what is written down of it: takes over what the daemon before had
/// whoever starts kvd keep, as far as it fits this configuration, and has this one's kept.
///
/// In order: take(); reopen() of each slab; rows(); keep().
///
/// Source: kvd/DESIGN.md "Blocks that outlive kvd", kvd/tiers/kept/FORMAT.md.
/// Owner:  control thread.
/// Errors: none; what is of no use is told to the log, counted and left behind.
class KeptMemory {
 public:
  /// `kept`: as take_kept_descriptors(). Domains of rows are entered, as by an engine of theirs.
  static KeptMemory take(const Config& config, KeptDescriptors kept, Domains& domains);

  /// Whether this daemon's DRAM is to outlive it.
  [[nodiscard]] bool on() const { return state_.has_value(); }
  /// Bytes of slabs that are there already.
  [[nodiscard]] Bytes bytes() const { return slab_bytes_ * std::ssize(slabs_); }
  /// DRAM with this number, with its bytes where rows are in it, else zeroed.
  [[nodiscard]] std::optional<kernels::Slab> reopen(kernels::DeviceBackend& backend,
                                                    SlabIndex slab);
  /// The rows whose bytes are what was written down: every byte is looked at.
  [[nodiscard]] core::AdoptRows rows(const mover::SlabStore& slabs);
  /// Has what is new kept. False: nobody keeps it, and on() is false from now on.
  bool keep(const mover::SlabStore& slabs);
  /// This daemon's DRAM ends with it, after all.
  void switch_off(const std::string& why);

  [[nodiscard]] kept::State& state() { return *state_; }
  /// Where it is written down what a slot holds.
  [[nodiscard]] std::map<SlotId, std::uint32_t>& records() { return records_; }

 private:
  struct Row {
    core::KeptBlocks blocks;
    std::vector<std::array<std::uint32_t, 3>> sums;  ///< by layer group
    std::vector<std::uint32_t> records;              ///< likewise; kept::kRecords: not there
  };
  enum class Fault : std::uint8_t { kNone, kTorn, kAltered, kMisfit, kNobodys };

  void open_state(KeptDescriptors& kept);
  void read(const Config& config, Domains& domains);
  [[nodiscard]] Fault fault_of(const Row& row, std::uint32_t slabs) const;
  [[nodiscard]] static bool is_as_written(const Row& row, const mover::SlabStore& slabs);
  void drop(const Row& row, Fault fault);

  Bytes slab_bytes_;
  std::optional<kept::State> state_;
  bool new_state_ = false;
  std::map<SlabIndex, UniqueFd> slabs_;  ///< not reopened yet
  std::map<SlabIndex, bool> reopened_;   ///< with their bytes
  std::set<SlabIndex> used_;             ///< that rows are in
  std::vector<Row> rows_;
  std::map<SlotId, std::uint32_t> records_;
  core::KeptDrops dropped_;
};

}  // namespace kvd::daemon
