#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "kernels/device/device_backend.hpp"

namespace kvd::kernels {

/// What should go wrong. Calls are counted from 1 over the backend's life; the same script and the
/// same calls give the same faults.
struct FaultScript {
  std::uint64_t seed = 1;
  std::set<std::uint64_t> fail_creates;  ///< these create_slab, copy_slab calls get OutOfMemory
  std::set<std::uint64_t> fail_copies;   ///< these batches move nothing and end in DeviceError
  std::set<std::uint64_t> lose_fences;   ///< these batches end well, their fence stays unwritten
  std::set<std::uint64_t> duplicate_completions;  ///< these batches are reported twice
  /// Batches wait, with their bytes unmoved, until step(), release_all() or chance lets them go.
  bool hold_copies = false;
  /// Chance in [0, 1] that a poll() lets one held batch go.
  double release_chance = 0;
  /// Lets held batches of one direction overtake each other, which no real device does.
  bool reorder_within_direction = false;
};

/// The faults that have happened so far.
struct FaultCounters {
  std::uint64_t failed_creates = 0;
  std::uint64_t failed_copies = 0;
  std::uint64_t lost_fences = 0;
  std::uint64_t duplicates = 0;
  std::uint64_t held = 0;
};

/// Any backend, misbehaving by a seeded script; without a script it changes nothing.
/// Source:  kvd/DESIGN.md "Safety rules", which it puts to the test; the shape of leveldb's
/// fault-injecting Env.
/// Owner:   as DeviceBackend; step and release_all: control thread.
class FaultyBackend final : public DeviceBackend {
 public:
  [[nodiscard]] static Result<std::unique_ptr<FaultyBackend>> create(
      std::unique_ptr<DeviceBackend> inner, FaultScript script);

  [[nodiscard]] Bytes granularity(Tier tier) const override { return inner_->granularity(tier); }
  [[nodiscard]] int completion_fd() const override { return ready_.get(); }
  void set_link_bandwidth(BytesPerSecond rate) override { inner_->set_link_bandwidth(rate); }
  [[nodiscard]] std::optional<DeviceIdentity> identity() const override {
    return inner_->identity();
  }
  [[nodiscard]] Status adopt_page(void* address, Bytes size) override {
    return inner_->adopt_page(address, size);
  }
  void release_page(void* address, const std::shared_ptr<const void>& mapping) override {
    inner_->release_page(address, mapping);
  }
  [[nodiscard]] Status health() const override { return inner_->health(); }
  [[nodiscard]] std::string kind() const override { return inner_->kind(); }

  /// Lets one held batch go. The seed chooses among the oldest of each direction (with
  /// reorder_within_direction, among all). Returns its ticket; none when no batch was held.
  Ticket step();
  /// Lets all held batches go, in the order in which step() would.
  void release_all();
  [[nodiscard]] FaultCounters faults() const;

 private:
  FaultyBackend(std::unique_ptr<DeviceBackend> inner, FaultScript script, UniqueFd nudge,
                UniqueFd ready);
  Result<Slab> do_create_slab(Tier tier, Bytes size) override;
  Result<Slab> do_copy_slab(Bytes size, const UniqueFd& memory,
                            std::span<const SlabExtent> extents) override;
  Status do_read_slab(std::uintptr_t address, Bytes length, const Look& look) override {
    return inner_->read_slab(address, length, look);
  }
  Status do_destroy_slab(SlabHandle handle) override { return inner_->destroy_slab(handle); }
  Status do_discard_slab(SlabHandle handle) override { return inner_->discard_slab(handle); }
  Result<UniqueFd> do_export_slab(SlabHandle handle) override {
    return inner_->export_slab(handle);
  }
  Status do_adopt_slab(const Slab& slab) override {
    const Result<SlabHandle> adopted = inner_->adopt_slab(slab);
    return adopted.ok() ? Status() : Status(adopted.error());
  }
  Status do_submit(CopyBatch batch) override;
  void do_poll(std::vector<Completion>& completed) override;

  [[nodiscard]] bool fails_create();
  // Call these with mutex_ held.
  void mark(CopyBatch& batch);
  void unmark(Ticket ticket);
  Ticket release_one();
  [[nodiscard]] std::size_t choose();
  void report(Completion completion, std::vector<Completion>& completed);
  void set_nudge();

  const std::unique_ptr<DeviceBackend> inner_;
  const FaultScript script_;
  const UniqueFd nudge_;  // readable while a poll() may find something that inner_ does not know of
  const UniqueFd ready_;  // epoll over inner_'s completions and nudge_

  mutable std::mutex mutex_;  // guards everything below
  std::mt19937_64 random_;
  std::uint64_t creates_ = 0;
  std::uint64_t copies_ = 0;
  std::deque<CopyBatch> held_;
  std::vector<Completion> refused_;     // held batches that inner_ refused when they were let go
  std::unordered_set<Ticket> failing_;  // to be reported as failed
  std::unordered_set<Ticket> duplicating_;  // to be reported twice
  FaultCounters faults_;
};

}  // namespace kvd::kernels
